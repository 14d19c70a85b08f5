"""Frees that other streams hold up, pools of graphs and ``MemPool``, ``empty_cache()``, and traces that begin late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator_traces import MIB, Requests, segment_of
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.settings import AllocatorSettings, parse_settings
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, TraceError

pytestmark = pytest.mark.timeout(600)

DEFAULT = AllocatorSettings()


def test_a_block_that_another_stream_uses_stays_active_and_serves_nobody() -> None:
    requests = Requests()
    shared = requests.alloc(20 * MIB)
    requests.request_free(shared)
    requests.alloc(20 * MIB)
    requests.complete_free(shared)
    outcome = replay(requests.trace(), DEFAULT)
    assert (outcome.peak_allocated_bytes, outcome.peak_active_bytes) == (20 * MIB, 40 * MIB)
    assert (outcome.allocated_bytes, outcome.reserved_bytes) == (20 * MIB, 40 * MIB)


def test_a_free_without_a_recorded_end_is_pending_at_the_end() -> None:
    requests = Requests()
    requests.free(requests.alloc(1))
    shared = requests.alloc(20 * MIB)
    requests.request_free(shared)
    outcome = replay(requests.trace(), DEFAULT, with_end=True)
    assert outcome.end is not None
    states = [block.state for segment in outcome.end for block in segment.blocks if segment.is_large]
    assert states == [BlockState.ACTIVE_PENDING_FREE]


def test_replay_treats_frees_as_complete_if_no_completions_are_recorded() -> None:
    requests = Requests()
    requests.request_free(requests.alloc(20 * MIB))
    requests.alloc(20 * MIB)
    assert replay(requests.trace(), DEFAULT).reserved_bytes == 20 * MIB


def test_pools_do_not_serve_each_other() -> None:
    requests = Requests()
    requests.free(requests.alloc(20 * MIB))
    inside = requests.alloc(20 * MIB, pool=1)
    outcome = replay(requests.trace(), DEFAULT, with_end=True)
    assert outcome.reserved_bytes == 40 * MIB
    assert segment_of(outcome, inside).pool == (0, 1)


def test_a_flush_leaves_private_pools_alone() -> None:
    """Only their owner gives their memory back: whether it has gone is not in the requests."""
    requests = Requests()
    requests.free(requests.alloc(20 * MIB, pool=1), requests.alloc(20 * MIB))
    requests.alloc(30 * MIB)
    outcome = replay(requests.trace(), DEFAULT, capacity_bytes=50 * MIB)
    assert (outcome.device_frees, outcome.reserved_bytes, outcome.ooms) == (1, 50 * MIB, 0)


def emptied() -> Requests:
    """A program that calls ``empty_cache()`` and then goes on."""
    requests = Requests()
    held = requests.alloc(20 * MIB)
    requests.free(held)
    requests.segment(Action.SEGMENT_FREE, held.address, 20 * MIB)
    requests.alloc(12 * MIB)
    return requests


@pytest.mark.parametrize("settings", [DEFAULT, AllocatorSettings(expandable_segments=True)])
def test_a_call_of_empty_cache_is_taken_over_under_other_settings(settings: AllocatorSettings) -> None:
    outcome = replay(emptied().trace(), settings)
    assert outcome.device_frees == 1
    assert outcome.peak_reserved_bytes == 20 * MIB
    assert outcome.alloc_retries == 0


def test_a_recorded_flush_is_a_retry_only_where_a_limit_was_reached() -> None:
    """The events are the same: segments go, one comes, the request has its block. Here the card was far from full."""
    requests = Requests()
    requests.segment(Action.SEGMENT_ALLOC, 40 * MIB, 20 * MIB)
    held = requests.alloc(20 * MIB, at=40 * MIB)
    requests.free(held)
    requests.segment(Action.SEGMENT_FREE, 40 * MIB, 20 * MIB)
    requests.segment(Action.SEGMENT_ALLOC, 80 * MIB, 30 * MIB)
    requests.alloc(30 * MIB, at=80 * MIB)
    free, capped = (replay(requests.trace(cap_bytes=cap, total_bytes=1000 * MIB)) for cap in (None, 40 * MIB))
    assert (free.alloc_retries, free.address_mismatches, free.device_frees) == (0, 0, 1)
    assert (capped.alloc_retries, capped.address_mismatches, capped.device_frees) == (1, 0, 1)


BASE = 0x7F_0000_0000
START = KnownSegment(
    address=BASE,
    total_bytes=20 * MIB,
    stream=0,
    is_large=True,
    is_expandable=False,
    pool=(0, 0),
    blocks=(
        KnownBlock(BASE, 8 * MIB, 8 * MIB - 1, BlockState.ACTIVE_ALLOCATED),
        KnownBlock(BASE + 8 * MIB, 6 * MIB, 0, BlockState.INACTIVE),
        KnownBlock(BASE + 14 * MIB, 6 * MIB, 6 * MIB, BlockState.ACTIVE_PENDING_FREE),
    ),
)


def test_a_trace_may_begin_in_the_middle() -> None:
    requests = Requests()
    old, pending = START.blocks[0], START.blocks[2]
    held = requests.alloc(5 * MIB, at=BASE + 8 * MIB)
    requests.free(held)
    requests.complete_free(held._replace(address=pending.address, size_bytes=pending.requested_bytes))
    requests.free(held._replace(address=old.address, size_bytes=old.requested_bytes))
    requests.alloc(20 * MIB, at=BASE)
    trace = requests.trace(start=(START,), complete=False)
    outcome = replay(trace, with_end=True)
    assert (outcome.address_mismatches, outcome.skipped_frees) == (0, 0)
    assert (outcome.reserved_bytes, outcome.allocated_bytes, outcome.device_allocs) == (20 * MIB, 20 * MIB, 0)
    assert (outcome.peak_allocated_bytes, outcome.peak_active_bytes) == (20 * MIB, 20 * MIB)


def test_frees_of_what_nobody_has_seen_are_counted_where_the_beginning_is_lost() -> None:
    requests = Requests()
    unknown = requests.alloc(MIB)
    requests.rows.clear()
    requests.free(unknown)
    assert replay(requests.trace(complete=False), DEFAULT).skipped_frees == 2
    with pytest.raises(TraceError, match="frees 0x1, which is not allocated"):
        replay(requests.trace(complete=True), DEFAULT)


@pytest.mark.parametrize(
    "segments",
    [
        (START, START),
        (START._replace(total_bytes=40 * MIB),),
        (START._replace(total_bytes=0, blocks=()),),
        (START._replace(blocks=START.blocks[1:]),),
        (START._replace(blocks=(START.blocks[0]._replace(size_bytes=20 * MIB + 1),)),),
        (START._replace(blocks=(START.blocks[0], START.blocks[2])),),
    ],
)
def test_a_beginning_that_cannot_be_is_refused(segments: tuple[KnownSegment, ...]) -> None:
    requests = Requests()
    requests.alloc(1)
    with pytest.raises(TraceError, match="at the start"):
        replay(requests.trace(start=segments, complete=False))


def test_a_recording_under_other_settings_forgets_what_the_device_said() -> None:
    """Segment events are of the recorded settings; others make their own, and compare no address."""
    requests = Requests()
    requests.segment(Action.SEGMENT_ALLOC, BASE, 20 * MIB)
    requests.alloc(3 * MIB, at=BASE)
    trace = requests.trace()
    assert replay(trace).reserved_bytes == 20 * MIB
    outcome = replay(trace, replace(parse_settings("", "2.13.0"), large_segment_bytes=64 * MIB))
    assert (outcome.reserved_bytes, outcome.address_mismatches) == (64 * MIB, 0)
