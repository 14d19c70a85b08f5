"""The ranks of jobs as ``ProcessCommands`` reaches them, without processes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge_scheduler_hooks.ports import Reply


class FakeRanks:
    """Every rank does what it is sent at once; those in ``savers`` have a callback for checkpoints. None is kept."""

    def __init__(self) -> None:
        self.steps = 200
        self.savers: set[ProcessId] = set()
        self.saved: dict[ProcessId, set[str]] = {}
        self.printed: dict[ProcessId, dict[str, str]] = {}
        """What each was told to print, by the id of the telling."""
        self.evidence: list[str] = []
        """Ids under which they were asked for evidence."""
        self.error: str | None = None

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        return {rank.rank: self._reply(rank.process, request) for rank in ranks}

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        raise AssertionError("these jobs have no keeper")

    def _reply(self, process: ProcessId, request: Mapping[str, Any]) -> Reply:
        if self.error is not None:
            return Reply(error=self.error)
        self.steps += 1
        if request["command"] == "fraction":
            return Reply(value={"ok": True, "limit_fraction": request["value"]})
        if request["command"] == "tell":
            self.printed.setdefault(process, {}).setdefault(request["id"], request["text"])
            return Reply(value={"ok": True})
        if request["command"] == "evidence":
            self.evidence.append(request["id"])
            return Reply(value={"ok": True, "id": request["id"], "state": "recording"})
        if request["command"] == "ping":
            means = {"checkpoint": "callback"} if process in self.savers else {}
            return Reply(value={"ok": True, "step": self.steps, **means})
        saved = self.saved.setdefault(process, set())
        if request["command"] == "checkpoint":
            saved.add(request["id"])
        if request["id"] not in saved:
            return Reply(error="no such request", kind="unknown")
        return Reply(value={"ok": True, "stage": "done", "step": self.steps, "detail": "saved", "fresh_files": []})
