"""Which of the segments that were there before a trace's first event is older: the recorded addresses betray it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from allocator_traces import MIB, Requests
from tidegauge.analysis.snapshots import reading as snapshots
from tidegauge.analysis.traces.reading import with_segment_order
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.core.allocator.replay import TIES_STRIDE, followed_ties, replay
from tidegauge.core.allocator.results import FollowedTies
from tidegauge.core.allocator.trace import BlockState, KnownBlock, KnownSegment, Trace

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


def test_one_replay_betrays_the_order_of_many_segments() -> None:
    trace = ring()
    followed = followed_ties(trace)
    assert followed.first_mismatch is None
    assert 1 < len(followed.ties) <= replay(trace).followed_ties
    assert [one.event for one in followed.ties] == sorted({one.event for one in followed.ties})
    assert followed_ties(with_segment_order(trace)).ties == []


def youngest_first(count: int) -> Trace:
    """Takes one of so many equal free segments after the other, those with the highest addresses first."""
    size_bytes, requests = 20 * MIB, Requests()
    addresses = [(1 << 30) + 2 * number * size_bytes for number in range(count)]
    start = [
        KnownSegment(
            address, size_bytes, 0, True, False, (0, 0), (KnownBlock(address, size_bytes, 0, BlockState.INACTIVE),)
        )
        for address in addresses
    ]
    for address in reversed(addresses):
        for _ in range(TIES_STRIDE):
            held = requests.alloc(size_bytes, at=address)
            requests.free(held)
        requests.alloc(size_bytes, at=address)
    return requests.trace(start=tuple(start), complete=False)


def test_few_replays_find_the_order_of_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, replayed = youngest_first(30), []

    def counted(attempt: Trace) -> FollowedTies:
        replayed.append(len(attempt))
        return followed_ties(attempt)

    monkeypatch.setattr("tidegauge.core.allocator.replay.followed_ties", counted)
    ordered = with_segment_order(trace)
    assert [one.address for one in ordered.start] == sorted((one.address for one in trace.start), reverse=True)
    assert len(replayed) <= 4


def test_a_torch_that_goes_by_addresses_needs_no_order() -> None:
    trace = replace(ring(), torch_version="2.11.0")
    assert with_segment_order(trace) is trace


def test_addresses_that_no_order_explains_leave_an_order_and_an_end() -> None:
    trace = replace(ring(), alloc_conf="roundup_power2_divisions:2")
    assert replay(trace).address_mismatches > 0
    assert sorted(with_segment_order(trace).start) == sorted(trace.start)
