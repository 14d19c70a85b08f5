"""Expandable segments: one range of addresses a stream and pool, mapped and unmapped in handles of 2 and 20 MiB."""

from __future__ import annotations

import pytest

from allocator_traces import MIB, Requests, block_of
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import AllocatorSettings

pytestmark = pytest.mark.timeout(600)

EXPANDABLE = AllocatorSettings(expandable_segments=True)


def played(requests: Requests, *, capacity_bytes: int | None = None) -> Replay:
    return replay(requests.trace(), EXPANDABLE, cap_bytes=None, capacity_bytes=capacity_bytes, with_end=True)


def test_a_range_grows_by_what_the_request_lacks() -> None:
    requests = Requests()
    first, second = requests.alloc(15 * MIB), requests.alloc(15 * MIB + 1)
    outcome = played(requests)
    assert (outcome.segments, outcome.reserved_bytes, outcome.device_allocs) == (1, 40 * MIB, 2)
    assert block_of(outcome, second).address == block_of(outcome, first).address + 15 * MIB


def test_each_stream_and_kind_has_a_range_of_its_own() -> None:
    requests = Requests()
    for stream in (0, 1):
        requests.alloc(1, stream=stream)
        requests.alloc(2 * MIB, stream=stream)
    outcome = played(requests)
    assert outcome.end is not None
    assert sorted((s.stream, s.is_large, s.total_bytes) for s in outcome.end) == [
        (0, False, 2 * MIB), (0, True, 20 * MIB), (1, False, 2 * MIB), (1, True, 20 * MIB),
    ]  # fmt: skip


def test_any_rest_becomes_a_block() -> None:
    requests = Requests()
    requests.alloc(20 * MIB - 512)
    outcome = played(requests)
    assert outcome.end is not None
    assert [block.size_bytes for block in outcome.end[0].blocks] == [20 * MIB - 512, 512]


def test_a_flush_unmaps_the_whole_handles_inside_a_free_block() -> None:
    requests = Requests()
    front = requests.alloc(5 * MIB)
    middle = requests.alloc(50 * MIB)  # 5 to 55: of it, the handle from 20 to 40 lies inside
    requests.alloc(4 * MIB)  # up to 59; the last MiB is free
    requests.free(middle)
    requests.alloc(2 * MIB, stream=1)
    outcome = played(requests, capacity_bytes=60 * MIB)
    assert outcome.end is not None
    assert (outcome.alloc_retries, outcome.ooms, outcome.device_frees) == (1, 0, 1)
    ranges = [(segment.address, segment.total_bytes) for segment in outcome.end if segment.stream == 0]
    start = block_of(outcome, front).address
    assert ranges == [(start, 20 * MIB), (start + 40 * MIB, 20 * MIB)]
    assert outcome.segments == 3


def test_the_hole_is_mapped_again_before_the_range_grows() -> None:
    requests = Requests()
    requests.alloc(5 * MIB)
    middle = requests.alloc(50 * MIB)
    requests.alloc(4 * MIB)
    requests.free(middle)
    other = requests.alloc(2 * MIB, stream=1)
    requests.free(other)
    again = requests.alloc(50 * MIB - 512)
    outcome = played(requests, capacity_bytes=60 * MIB)
    assert (outcome.alloc_retries, outcome.ooms, outcome.reserved_bytes) == (2, 0, 60 * MIB)
    assert block_of(outcome, again).size_bytes == 50 * MIB - 512
    assert outcome.segments == 1


def test_a_block_that_need_not_grow_so_far_is_preferred() -> None:
    """The last free block could grow without end; best fit takes the one in a hole, though it is larger."""
    requests = Requests()
    hole, fence, last = requests.alloc(8 * MIB), requests.alloc(5 * MIB), requests.alloc(7 * MIB)
    requests.free(hole, last)
    asked = requests.alloc(6 * MIB)
    outcome = played(requests)
    assert block_of(outcome, asked).address < block_of(outcome, fence).address


def test_expandable_segment_keeps_what_it_mapped_before_the_device_refused() -> None:
    """A range with a hole in it is mapped piece by piece."""
    requests = Requests()
    left, between, right = requests.alloc(40 * MIB), requests.alloc(40 * MIB), requests.alloc(10 * MIB)
    requests.free(left, between)
    taken = requests.alloc(60 * MIB, stream=1)  # unmaps the 80 MiB, and maps 60
    outcome = played(requests, capacity_bytes=100 * MIB)
    assert (outcome.alloc_retries, outcome.ooms, outcome.reserved_bytes) == (1, 0, 80 * MIB)
    assert block_of(outcome, right).size_bytes == 10 * MIB
    assert block_of(outcome, taken).size_bytes == 60 * MIB


def test_an_empty_range_is_given_back_with_its_addresses() -> None:
    requests = Requests()
    requests.free(requests.alloc(20 * MIB))
    requests.alloc(20 * MIB, stream=1)
    outcome = played(requests, capacity_bytes=20 * MIB)
    assert outcome.end is not None
    assert [segment.stream for segment in outcome.end] == [1]
    assert (outcome.device_allocs, outcome.device_frees) == (2, 1)
