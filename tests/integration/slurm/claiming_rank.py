"""A process that is a rank as far as its ring goes, and says of itself what the probe would: ``claiming_rank.py NAME``.

It lives for as long as there is a file NAME.on in the folder where it is started; NAME is its job name. With
``--fork`` it leaves its parent and its session first, as daemons do. Run with the service's Python and ``tests`` on
``PYTHONPATH``; no torch.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fake_node import FakeClock, FakeRank
from tidegauge.probe.identity import TorchFacts, identify
from tidegauge.probe.process_facts import read_process_facts

RUN_DIR = Path("/run/tidegauge")


def become_orphan() -> bool:
    """Whether this is the process that goes on: with a session of its own, and a parent that is none of the job's."""
    for _ in range(2):
        parent = os.getpid()
        if os.fork():
            return False
        os.setsid()
    while os.getppid() == parent:
        time.sleep(0.01)  # between two looks; nothing is decided by it
    return True


def main() -> None:
    name = sys.argv[1]
    if "--fork" in sys.argv[2:] and not become_orphan():
        return
    facts = read_process_facts()
    who = identify({**os.environ, "TIDEGAUGE_JOB_NAME": name}, facts, TorchFacts(), level="stats")
    now_s = time.monotonic()
    ring = FakeRank(
        RUN_DIR, FakeClock(now_s=now_s, unix_offset_s=time.time() - now_s), process=facts.process, who=who
    )  # fmt: skip
    ring.record()
    while Path(f"{name}.on").exists():
        time.sleep(0.05)  # between two looks; nothing is decided by it


if __name__ == "__main__":
    main()
