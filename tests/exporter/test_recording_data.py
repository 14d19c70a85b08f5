"""What the profile page embeds of a recording: its blocks add up to the profile at every event, in bounds."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from allocator_traces import Requests
from tidegauge.analysis.profile.profile import profile_of_recording
from tidegauge.analysis.profile.recording import NamedRecording, recording_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.allocator.trace import Action
from tidegauge.core.profile.categories import Category
from tidegauge_exporter.reports import recording_data as module
from tidegauge_exporter.reports.profile_page import render_profile
from tidegauge_exporter.reports.recording_data import recording_data, segment_lives

RECORDED = Path(__file__).parents[1] / "data" / "snapshots" / "steady_lm.late.snap.zst"
MIB = 1 << 20


@cache
def recording() -> NamedRecording:
    return recording_of(open_trace(RECORDED))


def data_of(one: NamedRecording, peak_event: int) -> dict[str, Any]:
    data = recording_data(one, peak_event=peak_event)
    assert data is not None
    return data


def held_at(data: dict[str, Any], event: int) -> dict[str, int]:
    """As the page's script does it."""
    blocks, held = data["blocks"], Counter[str]()
    made = [one - 1 for one in accumulate(blocks["made"])]
    for at, born in enumerate(made):
        if born + data["first"] <= event and (
            not blocks["lives"][at] or born + blocks["lives"][at] > event - data["first"]
        ):
            held[data["categories"][blocks["category"][at]]] += blocks["asked"][at]
            held["rounding"] += blocks["rounding"][at]
    return {name: count for name, count in held.items() if count}


def test_the_blocks_of_the_page_add_up_to_the_profile_at_each_moment_of_its_timeline() -> None:
    profile = profile_of_recording(recording())
    data = data_of(recording(), profile.peak.event)
    assert data["peak"] == profile.peak.event
    assert held_at(data, profile.peak.event) == {one.value: held for one, held in profile.peak.by_category.items()}
    for place in range(0, len(profile.timeline.events), 20):
        columns = profile.timeline.by_category
        told = {one.value: column[place] for one, column in columns.items() if column[place]}
        assert held_at(data, profile.timeline.events[place]) == told


def test_the_segments_of_the_page_hold_its_blocks() -> None:
    data = data_of(recording(), 1379)
    segments = data["segments"]
    reserved = sum(
        bytes_
        for bytes_, made, lives in zip(segments["bytes"], segments["made"], segments["freed"], strict=True)
        if made <= 1379 and (not lives or made + lives > 1379)
    )
    assert reserved == recording().reserved_bytes


def test_a_range_of_an_expandable_segment_that_goes_back_leaves_what_is_beside_it() -> None:
    asked = Requests()
    asked.segment(Action.SEGMENT_MAP, 100 * MIB, 60 * MIB)
    asked.segment(Action.SEGMENT_UNMAP, 120 * MIB, 20 * MIB)
    lives = [(one.address // MIB, one.size_bytes // MIB, one.made, one.freed) for one in segment_lives(asked.trace())]
    assert lives == [(100, 20, 0, None), (120, 20, 0, 1), (140, 20, 0, None)]


@pytest.mark.parametrize(("peak", "first"), [(1379, 1179), (2900, 2600), (10, 0)])
def test_of_a_long_recording_the_page_has_the_newest_events_or_those_around_the_peak(
    peak: int, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 400)
    data = data_of(recording(), peak)
    assert (data["first"], data["end"], data["left_out"]) == (first, first + 400, 2600)
    monkeypatch.undo()
    whole = data_of(recording(), peak)
    assert whole["left_out"] == 0
    assert held_at(data, peak) == held_at(whole, peak)


def test_a_recording_with_too_many_blocks_has_a_page_of_its_peak_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BLOCKS", 10)
    profile = profile_of_recording(recording())
    page = render_profile(profile, recording=recording(), subject="a", made_unix_s=1.8e9)
    assert "so the page shows its peak alone" in page
    assert 'id="profile-data"' not in page


def test_names_of_a_recording_cannot_end_the_data() -> None:
    trace = recording().trace
    hostile = tuple(
        tuple(frame._replace(name="</script><img src=x>\x1b\u202e") for frame in stack) for stack in trace.stacks
    )
    one = recording()._replace(trace=replace(trace, stacks=hostile))
    page = render_profile(profile_of_recording(one), recording=one, subject="a", made_unix_s=1.8e9)
    assert page.count("<script") == page.count("</script") == 2
    assert "<img" not in page
    assert not set(page) & set("\x1b\u202e")


def test_a_recording_without_stacks_has_its_blocks_too() -> None:
    asked = Requests()
    asked.free(asked.alloc(4 * MIB))
    asked.alloc(MIB)
    one = recording_of(replace(asked.trace(), stack=array("i")))
    profile = profile_of_recording(one)
    assert held_at(data_of(one, profile.peak.event), 0) == {Category.UNKNOWN.value: 4 * MIB}
