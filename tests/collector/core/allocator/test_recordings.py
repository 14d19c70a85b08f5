"""Recordings of training on an H200 (torch 2.11): each gives itself back, and the default one foretells the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator_traces import RECORDING_NAMES, recorded
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import TieBreak, parse_settings
from tidegauge.core.allocator.trace import BlockState, KnownSegment

pytestmark = pytest.mark.timeout(600)  # the first replay after a change of the sources compiles

FORETOLD = [name for name in RECORDING_NAMES if "_cap" not in name and not name.endswith("_c0")]


def outlines(segments: tuple[KnownSegment, ...] | None) -> list[tuple[int, int, int, bool, bool]]:
    """The recordings do not list blocks."""
    assert segments is not None
    return [(s.address, s.total_bytes, s.stream, s.is_large, s.is_expandable) for s in segments]


def counters(outcome: Replay) -> dict[str, int]:
    """Under the names that the recordings give them."""
    assert outcome.end is not None
    return {
        "allocated": outcome.allocated_bytes,
        "reserved": outcome.reserved_bytes,
        "peak_allocated": outcome.peak_allocated_bytes,
        "peak_reserved": outcome.peak_reserved_bytes,
        "alloc_retries": outcome.alloc_retries,
        "ooms": outcome.ooms,
        # torch counts no expandable segments here, nor what is split in them
        "segments": sum(not segment.is_expandable for segment in outcome.end),
        "active_blocks": sum(
            block.state is not BlockState.INACTIVE for segment in outcome.end for block in segment.blocks
        ),
        "inactive_split": sum(
            block.size_bytes
            for segment in outcome.end
            for block in segment.blocks
            if block.state is BlockState.INACTIVE and len(segment.blocks) > 1 and not segment.is_expandable
        ),
        "device_allocs": outcome.device_allocs,
        "device_frees": outcome.device_frees,
    }


def test_all_recordings_are_here() -> None:
    assert len(RECORDING_NAMES) == 17
    assert len(FORETOLD) == 10


@pytest.mark.parametrize("name", RECORDING_NAMES)
def test_every_address_and_the_last_segments_come_back(name: str) -> None:
    trace = recorded(name).trace
    outcome = replay(trace, with_end=True)
    assert (outcome.address_mismatches, outcome.first_mismatch, outcome.events) == (0, None, len(trace))
    assert outlines(outcome.end) == outlines(trace.end)


@pytest.mark.parametrize("name", RECORDING_NAMES)
@pytest.mark.parametrize("share", [0.33, 1])
def test_the_counters_after_a_step_are_torch_s_own(name: str, share: float) -> None:
    trace, steps = recorded(name)
    step = int(share * (len(steps) - 1))
    found = counters(replay(trace.first(trace.marks["step"][step] + 1), with_end=True))
    assert found == {key: steps[step][key] for key in found}


def test_recordings_that_ran_out_of_memory_are_among_them() -> None:
    """So that the tests above are about the whole ladder, too."""
    last = {name: recorded(name).steps[-1] for name in RECORDING_NAMES if "_cap" in name}
    assert last["mixed_cnn_cap1.1_"]["ooms"] > 60
    assert last["variable_length_cap0.9_garbage_collection_threshold"]["device_frees"] > 30


@pytest.mark.parametrize("name", FORETOLD)
def test_the_default_recording_foretells_the_peaks_under_a_setting(name: str) -> None:
    default = recorded(f"{name[:-1]}0").trace
    other, steps = recorded(name)
    outcome = replay(default, parse_settings(other.alloc_conf, default.torch_version), cap_bytes=other.cap_bytes)
    measured = [max(step[key] for step in steps) for key in ("peak_allocated", "peak_reserved")]
    assert [outcome.peak_allocated_bytes, outcome.peak_reserved_bytes] == measured


def test_a_wrong_tie_break_does_not_go_unnoticed() -> None:
    trace = recorded("variable_length_s1_c0").trace
    own = parse_settings(trace.alloc_conf, trace.torch_version)
    assert own.tie_break is TieBreak.ADDRESS
    outcome = replay(replace(trace, torch_version="2.13.0"))
    assert outcome.address_mismatches > 0
    assert outcome.first_mismatch is not None
    assert outcome.first_mismatch.recorded == trace.address[outcome.first_mismatch.event]
    assert outcome.first_mismatch.replayed != outcome.first_mismatch.recorded


def test_progress_and_curve_cover_all_events() -> None:
    trace = recorded("mixed_cnn_s1_c0").trace
    told: list[tuple[int, int]] = []
    outcome = replay(trace, curve_points=50, on_progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(trace), len(trace))
    assert outcome.curve is not None
    assert 45 <= len(outcome.curve.event) <= 50
    assert outcome.curve.event[-1] == len(trace) - 1
    assert max(outcome.curve.allocated_bytes) == outcome.peak_allocated_bytes
    assert max(outcome.curve.reserved_bytes) == outcome.peak_reserved_bytes
