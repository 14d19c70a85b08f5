from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.core.proc_status import status_numbers

STATUS = "Name:\t{name}\nUmask:\t0022\nUid:\t1000\t1001\t1000\t1001\nGroups:\t \nNSpid:\t700\t3\n"
ALSO_LINE_ENDS = "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
"""To ``str.splitlines``; the kernel leaves them in a name as they are."""


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
