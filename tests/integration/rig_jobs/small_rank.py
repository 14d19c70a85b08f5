"""A training process without torch: it makes steps, and its socket answers as a rank's probe does (docs/checkpoint.md).

``small_rank.py FOLDER [saves]``: its story goes to ``FOLDER/story``, one JSON object a line; it ends, with exit code 0,
when ``FOLDER/end`` is there.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegauge.core.run_dirs import socket_name
from tidegauge.probe.process_facts import process_id
from tidegauge.probe.run_files.command_socket import CommandSocket
from tidegauge.probe.run_files.run_folder import open_any_run_folder

STEP_S = 0.01


class SmallRank:
    """Steps, and what was asked of it."""

    def __init__(self, folder: Path, *, saves: bool) -> None:
        self.folder = folder
        self.saves = saves
        self.step = 0
        self.requests: dict[str, dict[str, Any]] = {}

    def tell(self, what: str, **more: Any) -> None:
        with (self.folder / "story").open("a") as story:
            story.write(json.dumps({"what": what, "pid": os.getpid(), **more}) + "\n")

    def end_step(self) -> None:
        self.step += 1
        for request in self.requests.values():
            if request["stage"] == "waiting" and self.step >= request["at_step"]:
                self.tell("saved", step=self.step)
                request.update(stage="done", detail=f"the callback returned at step {self.step}")

    def answer(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        command, known = request.get("command"), self.requests.get(str(request.get("id")))
        if command == "ping":
            return {"ok": True, "step": self.step, "checkpoint": "callback" if self.saves else None}
        if command == "fraction":
            self.tell("capped", fraction=request["value"])
            return {"ok": True, "limit_fraction": request["value"]}
        if command == "checkpoint_withdraw":
            withdrawn = known is not None and known["stage"] == "waiting"
            if known is not None and withdrawn:
                known.update(stage="failed", withdrawn=True)
            return {"ok": True, "withdrawn": withdrawn}
        if known is not None:
            return {"ok": True, "step": self.step, **known}
        if command == "checkpoint_status":
            return {"error": "no such request", "kind": "unknown"}
        if request["at_step"] <= self.step:
            return {"error": f"step {request['at_step']} is over", "kind": "passed"}
        fresh = {"stage": "waiting", "withdrawn": False, "detail": "waits", "at_step": request["at_step"]}
        self.requests[request["id"]] = fresh
        return {"ok": True, "step": self.step, **fresh}


def main() -> None:
    rank = SmallRank(Path(sys.argv[1]), saves="saves" in sys.argv[2:])
    run_folder, process = open_any_run_folder(os.environ), process_id(os.getpid())
    assert run_folder is not None
    assert process is not None
    commands = CommandSocket(run_folder, socket_name(process), rank.answer, allowed_uids=frozenset({os.geteuid()}))
    rank.tell("began", environ=dict(os.environ))
    while not (rank.folder / "end").exists():
        poll = select.poll()
        for descriptor in commands.descriptors():
            poll.register(descriptor, select.POLLIN)
        for descriptor, _ in poll.poll(STEP_S * 1000):
            commands.serve(descriptor, now_s=time.monotonic())
        rank.end_step()
    commands.close(unlink=True)


if __name__ == "__main__":
    main()
