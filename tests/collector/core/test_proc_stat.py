from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import parse_proc_stat

LINE = "4711 ({name}) {state} 12 4711 4700 0 -1 41 1 0 0 0 5 6 0 0 20 0 {threads} 0 99887 1000 250 1844674407370955"


@pytest.mark.parametrize("name", ["python", "a b", "a) R 1 2 3", "((", ""])
def test_the_name_may_contain_anything(name: str) -> None:
    stat = parse_proc_stat(LINE.format(name=name, state="S", threads=3))
    assert stat is not None
    assert (stat.process, stat.name, stat.parent_pid, stat.session_id) == (ProcessId(4711, 99887), name, 12, 4700)
    assert (stat.threads, stat.rss_pages) == (3, 250)


@pytest.mark.parametrize(
    ("state", "threads", "ended"), [("S", 1, False), ("Z", 1, True), ("Z", 2, False), ("X", 0, True)]
)
def test_a_zombie_has_ended_unless_other_threads_run(state: str, threads: int, ended: bool) -> None:
    stat = parse_proc_stat(LINE.format(name="x", state=state, threads=threads))
    assert stat is not None
    assert stat.ended is ended


@given(st.text(max_size=200))
def test_other_text_is_nobodys_line(text: str) -> None:
    assert parse_proc_stat(text) is None


def test_our_own_line_is_ours() -> None:
    stat = parse_proc_stat(Path("/proc/self/stat").read_text())
    assert stat is not None
    assert (stat.process.pid, stat.parent_pid, stat.session_id) == (os.getpid(), os.getppid(), os.getsid(0))
    assert not stat.ended
