"""The part of a long trace around its peak: its bounds, and the state before it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.analysis.traces.near_peak import near_peak
from tidegauge.core.allocator.trace import Trace
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import ProfileMoment

RECORDED = Path(__file__).parents[2] / "data" / "snapshots" / "steady_lm.late.snap.zst"


def read() -> Trace:
    (trace,) = read_snapshot(str(RECORDED)).traces.values()
    return trace


@pytest.mark.parametrize(("most", "first"), [(3_000, 0), (2_000, 1_000), (400, 2_034)])
def test_a_part_of_a_long_trace_has_its_peak(most: int, first: int) -> None:
    part = near_peak(read(), most)
    assert (part.first, len(part.trace)) == (first, most)
    whole, told = (profile_of(one).peak for one in (near_peak(read(), 3_000).trace, part.trace))
    # Rounding of blocks from before a part is what their frees tell.
    assert as_asked(told) == as_asked(whole)


def as_asked(moment: ProfileMoment) -> int:
    return moment.allocated_bytes - moment.by_category[Category.ROUNDING]


def test_a_trace_that_does_not_list_its_end_stays_whole() -> None:
    endless = replace(read(), end=None, complete=True)
    assert len(near_peak(endless, 10).trace) == len(endless)
