"""Which of the segments that were there before a trace's first event is older: the recorded addresses betray it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.traces.reading import with_segment_order
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.trace import Trace

FOLDER = Path(__file__).parents[2] / "data" / "allocator" / "snapshots"


def ring() -> Trace:
    """A real ring of torch 2.13 that lost its beginning, with its segments in order of address."""
    return with_start(snapshots.read_snapshot(FOLDER / "ring.pickle.gz").traces[0])


def test_all_addresses_come_back_once_the_order_is_known() -> None:
    trace = ring()
    assert replay(trace).followed_ties > 0
    ordered = with_segment_order(trace)
    assert replay(ordered).followed_ties == 0
    assert replay(ordered).address_mismatches == 0
    assert sorted(ordered.start) == sorted(trace.start)
    assert ordered.start != trace.start


def test_a_torch_that_goes_by_addresses_needs_no_order() -> None:
    trace = replace(ring(), torch_version="2.11.0")
    assert with_segment_order(trace) is trace


def test_addresses_that_no_order_explains_leave_an_order_and_an_end() -> None:
    trace = replace(ring(), alloc_conf="roundup_power2_divisions:2")
    assert replay(trace).address_mismatches > 0
    assert sorted(with_segment_order(trace).start) == sorted(trace.start)
