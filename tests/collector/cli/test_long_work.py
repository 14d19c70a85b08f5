from __future__ import annotations

from queue import SimpleQueue

from tidegauge.cli.profile.long_work import said_if_long


def test_work_that_takes_long_is_told_and_other_work_is_not() -> None:
    said: SimpleQueue[str] = SimpleQueue()
    with said_if_long("short", after_s=1000, say=said.put):
        pass
    with said_if_long("long", after_s=0, say=said.put):
        assert said.get(timeout=60) == "long"
    assert said.empty()
