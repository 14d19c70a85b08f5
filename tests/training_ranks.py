"""Ranks that train on a fake clock and answer as the probe does (docs/checkpoint.md), and a keeper that says what it is
told to: the ``ProcessCommands`` of the checkpoint's and the local adapter's tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.orders import GONE, Reply

NO_ANSWER = Reply(error="no answer from the agent within 10 s")


@dataclass
class FakeTime:
    """Passes when somebody waits for an answer, or sleeps."""

    now_s: float = 0.0

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@dataclass
class TrainingRank:
    """One training process, at the step that its pace has brought it to by now."""

    rank: int
    time: FakeTime
    steps_per_s: float = 10.0
    ahead: int = 0
    """Steps beside those of its pace."""
    means: str | None = "callback"
    gone: bool = False
    fails: bool = False
    deaf_to: set[str] = field(default_factory=set)
    """Commands that it hears, and whose answer is lost."""
    misses: set[str] = field(default_factory=set)
    """Commands that never reach it."""
    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    saves: list[int] = field(default_factory=list)
    """The steps at which it saved."""
    launcher_pid: int = 1000
    """Tells ranks of one number apart."""

    @property
    def target(self) -> RankTarget:
        return RankTarget(self.rank, f"node-{self.rank % 2}", ProcessId(self.launcher_pid + self.rank, 5000), 0)

    @property
    def step(self) -> int:
        return self.ahead + int(self.time.now_s * self.steps_per_s)

    def live(self) -> None:
        """Do what was due by now."""
        for request in self.requests.values():
            if request["stage"] == "waiting" and self.step >= request["at_step"]:
                request["stage"] = "failed" if self.fails else "done"
                request["detail"] = "the callback raised OSError: disk full" if self.fails else "it returned"
                self.saves.append(request["at_step"])

    def answer(self, request: Mapping[str, Any]) -> Reply:
        self.live()
        command = str(request["command"])
        if self.gone:
            return Reply(error=f"no rank with pid {1000 + self.rank} lives here", kind=GONE)
        if command in self.misses:
            return NO_ANSWER
        reply = self._reply(command, request)
        return NO_ANSWER if command in self.deaf_to else reply

    def _reply(self, command: str, request: Mapping[str, Any]) -> Reply:
        known = self.requests.get(str(request.get("id")))
        if command == "ping":
            return Reply({"ok": True, "step": self.step, "checkpoint": self.means})
        if command == "fraction":
            return Reply({"ok": True, "limit_fraction": request["value"]})
        if command == "checkpoint_withdraw":
            withdrawn = known is not None and known["stage"] == "waiting"
            if known is not None and withdrawn:
                known.update(stage="failed", withdrawn=True, detail="withdrawn before its step")
            return Reply({"ok": True, "withdrawn": withdrawn})
        if known is not None and not (
            command == "checkpoint" and known["withdrawn"] and known["at_step"] != request["at_step"]
        ):
            return self._look(known)
        if command == "checkpoint_status":
            return Reply(error="no such request", kind="unknown")
        return self._take_on(request)

    def _take_on(self, request: Mapping[str, Any]) -> Reply:
        if request["way"] != self.means:
            return Reply(error="no callback is registered", kind="unable")
        if request["at_step"] <= self.step:
            return Reply(error=f"step {request['at_step']} is over", kind="passed")
        fresh = {"stage": "waiting", "withdrawn": False, "detail": "waits", "at_step": request["at_step"]}
        self.requests[str(request["id"])] = fresh
        return self._look(fresh)

    def _look(self, known: Mapping[str, Any]) -> Reply:
        return Reply({"ok": True, "step": self.step, "fresh_files": [], **known})


class FakeCommands:
    """``ProcessCommands``: every answer takes ``answer_s``. ``keeper`` answers for the launch."""

    def __init__(
        self,
        time: FakeTime,
        ranks: Collection[TrainingRank] = (),
        *,
        answer_s: float = 1.0,
        keeper: Callable[[Mapping[str, Any]], Reply] | None = None,
    ) -> None:
        self.time = time
        self.ranks = {rank.target.process.pid: rank for rank in ranks}
        self.answer_s = answer_s
        self.keeper = keeper
        self.on_request: Callable[[Mapping[str, Any]], None] = lambda _request: None
        """Called before ranks hear of a request."""
        self.log: list[tuple[str, Mapping[str, Any]]] = []
        """What was sent: ``rank 0`` or ``keeper node pid``, and the request."""

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        self.on_request(request)
        self.time.sleep(self.answer_s / 2)
        replies = {}
        for rank in ranks:
            self.log.append((f"rank {rank.rank}", request))
            replies[rank.rank] = self.ranks[rank.process.pid].answer(request)
        self.time.sleep(self.answer_s / 2)
        return replies

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        self.log.append((f"keeper {node_id} {handle['pid']}", request))
        assert self.keeper is not None, "nobody keeps this job"
        return self.keeper(request)

    def sent(self, command: str) -> list[Mapping[str, Any]]:
        """Every request of that name so far, one for each that it was sent to."""
        return [request for _, request in self.log if request["command"] == command]
