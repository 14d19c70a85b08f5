from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import parse_proc_stat, status_numbers

LINE = "4711 ({name}) {state} 12 4711 4700 0 -1 41 1 0 0 0 5 6 0 0 20 0 {threads} 0 99887 1000 250 1844674407370955"
STATUS = "Name:\t{name}\nUmask:\t0022\nUid:\t1000\t1001\t1000\t1001\nGroups:\t \nNSpid:\t700\t3\n"
ALSO_LINE_ENDS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""To ``str.splitlines``; the kernel leaves them in a name as they are."""


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


def test_a_field_is_its_numbers() -> None:
    status = STATUS.format(name="python")
    assert status_numbers(status, "Uid") == (1000, 1001, 1000, 1001)
    assert status_numbers(status, "NSpid") == (700, 3)
    assert status_numbers(status, "Groups") == status_numbers(status, "Ngid") == ()


@pytest.mark.parametrize("end", ALSO_LINE_ENDS, ids=ascii)
@pytest.mark.parametrize("field", ["Uid:\t0\t500", "Uid:\tx\ty", "NSpid:\t1\tx"])
def test_a_name_makes_no_field(end: str, field: str) -> None:
    status = STATUS.format(name=end + field)
    assert (status_numbers(status, "Uid")[1], status_numbers(status, "NSpid")) == (1001, (700, 3))


@pytest.mark.parametrize("words", ["x\ty", "1\t-1", "1\t1_000", "1\t\u0661", "1\t\u00b2", "1\t+1", "0x1"])
def test_a_field_that_is_not_all_numbers_is_not_there(words: str) -> None:
    assert status_numbers(f"Name:\tpython\nUid:\t{words}\n", "Uid") == ()


def test_a_line_that_is_cut_off_is_left_out() -> None:
    assert status_numbers("Name:\tpython\nNSpid:\t700\t1", "NSpid") == ()


@given(st.text(alphabet=f"{ALSO_LINE_ENDS}Uid:\t01", max_size=30))
def test_no_name_makes_a_field(name: str) -> None:
    assert status_numbers(STATUS.format(name=name), "Uid") == (1000, 1001, 1000, 1001)


def test_our_own_uid_is_ours() -> None:
    assert status_numbers(Path("/proc/self/status").read_text(), "Uid")[1] == os.geteuid()
