"""Any program, any setting: the quick model and one that looks at every block agree, and memory stays whole."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from allocator_traces import MIB, Held, Requests
from examples import fewer
from slow_allocator import SlowAllocator
from tidegauge.core.allocator.replay import replay
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import AllocatorSettings, TieBreak
from tidegauge.core.allocator.trace import BlockState, KnownSegment, Trace

pytestmark = pytest.mark.timeout(600)

SIZES = (
    0, 1, 512, 513, 5000, MIB - 1, MIB, MIB + 1, 2 * MIB, 3 * MIB, 5 * MIB + 7, 9 * MIB, 10 * MIB - 1, 10 * MIB,
    12 * MIB, 18 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 31 * MIB, 40 * MIB, 65 * MIB, 90 * MIB, 120 * MIB,
)  # fmt: skip


class Deed(NamedTuple):
    """What a program does next; the number says with which of the blocks that it may be done with."""

    what: str
    """``alloc``, ``free``, ``hand over`` (freed, but another stream still uses it), ``end`` (of that)."""
    number: int = 0
    size_bytes: int = 0
    stream: int = 0


class Limits(NamedTuple):
    """Bytes; ``None``: none."""

    cap: int | None = None
    capacity: int | None = None


FREES = ("free", "free", "hand over", "end")
deeds = st.lists(
    st.builds(Deed, st.just("alloc"), size_bytes=st.sampled_from(SIZES), stream=st.integers(0, 1))
    | st.builds(Deed, st.sampled_from(FREES), number=st.integers(0, 1000)),
    max_size=80,
)
ordinary_settings = st.builds(
    AllocatorSettings,
    max_split_bytes=st.none() | st.sampled_from([32 * MIB, 64 * MIB]),
    max_non_split_rounding_bytes=st.none() | st.sampled_from([32 * MIB, 64 * MIB]),
    roundup_power2_divisions=st.sampled_from([(0,) * 16, (4,) * 16, (8, 0, 2, 1) + (2,) * 12]),
    garbage_collection_threshold=st.sampled_from([0.0, 0.3, 0.8]),
    large_segment_bytes=st.sampled_from([20 * MIB, 32 * MIB]),
    tie_break=st.sampled_from(TieBreak),
)
all_settings = st.builds(replace, ordinary_settings, expandable_segments=st.booleans())
sizes_or_none = st.none() | st.sampled_from([100 * MIB, 250 * MIB])
all_limits = st.builds(Limits, sizes_or_none, sizes_or_none)


def carried_out(doings: Sequence[Deed]) -> Iterator[tuple[Deed, int]]:
    """Each deed with the place of its block among the blocks ever asked for; those without one are left out."""
    held: list[int] = []
    waiting: list[int] = []
    asked = 0
    for deed in (Deed("alloc", size_bytes=1), Deed("free"), *doings):  # so that frees have a recorded end
        if deed.what == "alloc":
            held.append(asked)
            yield deed, asked
            asked += 1
        elif deed.what == "end" and waiting:
            yield deed, waiting.pop(deed.number % len(waiting))
        elif deed.what in ("free", "hand over") and held:
            block = held.pop(deed.number % len(held))
            if deed.what == "hand over":
                waiting.append(block)
            yield deed, block


def trace_of(doings: Sequence[Deed]) -> Trace:
    requests = Requests()
    held: dict[int, Held] = {}
    for deed, block in carried_out(doings):
        if deed.what == "alloc":
            held[block] = requests.alloc(deed.size_bytes, stream=deed.stream)
        elif deed.what == "free":
            requests.free(held[block])
        elif deed.what == "hand over":
            requests.request_free(held[block])
        else:
            requests.complete_free(held[block])
    return requests.trace()


def slowly(doings: Sequence[Deed], chosen: AllocatorSettings, limits: Limits) -> SlowAllocator:
    allocator = SlowAllocator(chosen, cap=limits.cap, capacity=limits.capacity)
    steps = list(carried_out(doings))
    for place, (deed, block) in enumerate(steps):
        if deed.what == "alloc":
            allocator.allocate(block, deed.size_bytes, deed.stream)
            continue
        if deed.what != "end":
            allocator.request_free(block)
        # A free whose end is the next event was held up by nobody, and nothing can tell.
        if deed.what != "hand over" or steps[place + 1 : place + 2] == [(Deed("end"), block)]:
            allocator.complete_free(block)
    return allocator


def figures(outcome: Replay) -> tuple[int, ...]:
    return (
        outcome.allocated_bytes, outcome.reserved_bytes, outcome.peak_allocated_bytes, outcome.peak_active_bytes,
        outcome.peak_reserved_bytes, outcome.allocated_at_peak_reserved_bytes, outcome.requested_at_peak_bytes,
        outcome.alloc_retries, outcome.ooms, outcome.device_allocs, outcome.device_frees, outcome.segments,
    )  # fmt: skip


def slow_figures(slow: SlowAllocator) -> tuple[int, ...]:
    return (
        slow.sum_of(BlockState.ACTIVE_ALLOCATED), slow.reserved, slow.peak_allocated, slow.peak_active,
        slow.peak_reserved, slow.allocated_at_peak_reserved, slow.requested_at_peak,
        slow.retries, slow.ooms, slow.device_allocs, slow.device_frees, len(slow.segments),
    )  # fmt: skip


Shape = list[tuple[int, bool, list[tuple[int, int, BlockState]]]]
"""Segments, the first made first: stream, whether small, and each block's size, what was asked for, and its state."""


def shape(end: tuple[KnownSegment, ...]) -> Shape:
    return [
        (s.stream, not s.is_large, [(b.size_bytes, b.requested_bytes, b.state) for b in s.blocks])
        for s in sorted(end, key=lambda segment: -segment.address)
    ]


def slow_shape(slow: SlowAllocator) -> Shape:
    return [
        (s.stream, s.is_small, [(b.size, b.requested if b.state else 0, b.state) for b in s.blocks])
        for s in slow.segments
    ]


def compare(doings: Sequence[Deed], chosen: AllocatorSettings, limits: Limits) -> None:
    outcome = replay(trace_of(doings), chosen, cap_bytes=limits.cap, capacity_bytes=limits.capacity, with_end=True)
    slow = slowly(doings, chosen, limits)
    assert figures(outcome) == slow_figures(slow)
    assert outcome.end is not None
    assert shape(outcome.end) == slow_shape(slow)


@given(deeds, ordinary_settings, all_limits)
@example([], AllocatorSettings(), Limits())
def test_both_models_agree(doings: list[Deed], chosen: AllocatorSettings, limits: Limits) -> None:
    compare(doings, chosen, limits)


@pytest.mark.parametrize("tie_break", TieBreak)
def test_both_models_agree_when_thousands_of_blocks_are_free(tie_break: TieBreak) -> None:
    """The quick model keeps free blocks in chunks that are split and absorbed: here there are many."""
    dice = random.Random(7)
    doings: list[Deed] = []
    for tide in range(6):
        doings += [Deed("alloc", size_bytes=512 * dice.randint(1, 40), stream=dice.randrange(2)) for _ in range(400)]
        doings += [Deed("free", number=dice.randrange(1 << 20)) for _ in range(380 if tide % 2 else 250)]
    compare(doings, AllocatorSettings(tie_break=tie_break), Limits())


@given(deeds, all_settings, all_limits)
def test_memory_stays_whole(doings: list[Deed], chosen: AllocatorSettings, limits: Limits) -> None:
    trace = trace_of(doings)
    outcome = replay(trace, chosen, cap_bytes=limits.cap, capacity_bytes=limits.capacity, with_end=True)
    assert outcome.end is not None
    last_end = 0
    for segment in outcome.end:
        assert segment.address >= last_end, "segments overlap"
        last_end = address = segment.address
        for block in segment.blocks:
            assert block.address == address, "blocks overlap, or leave a gap"
            assert block.size_bytes > 0
            assert block.size_bytes % 512 == 0
            assert block.requested_bytes <= block.size_bytes
            address += block.size_bytes
        last_end = address
        assert address == segment.address + segment.total_bytes
        states = [block.state for block in segment.blocks]
        assert (BlockState.INACTIVE, BlockState.INACTIVE) not in list(zip(states, states[1:], strict=False)), (
            "not merged"
        )
    by_state = {
        state: sum(b.size_bytes for s in outcome.end for b in s.blocks if b.state is state) for state in BlockState
    }
    active = by_state[BlockState.ACTIVE_ALLOCATED] + by_state[BlockState.ACTIVE_PENDING_FREE]
    assert outcome.reserved_bytes == sum(segment.total_bytes for segment in outcome.end)
    assert outcome.allocated_bytes == by_state[BlockState.ACTIVE_ALLOCATED]
    assert outcome.reserved_bytes >= active >= outcome.allocated_bytes
    assert outcome.peak_reserved_bytes >= max(outcome.peak_active_bytes, outcome.reserved_bytes)
    assert outcome.peak_active_bytes >= outcome.peak_allocated_bytes >= outcome.requested_at_peak_bytes
    assert outcome.segments == len(outcome.end)
    assert (outcome.address_mismatches, outcome.first_mismatch) == (0, None)
    assert limits.capacity is None or outcome.peak_reserved_bytes <= limits.capacity
    handle_bytes = chosen.large_segment_bytes
    if chosen.expandable_segments:
        assert all(s.total_bytes % (handle_bytes if s.is_large else 2 * MIB) == 0 for s in outcome.end)
        assert limits.cap is None or outcome.peak_reserved_bytes < limits.cap + handle_bytes
    else:
        assert limits.cap is None or outcome.peak_reserved_bytes <= limits.cap


@fewer(2)
@given(deeds, all_settings)
def test_with_room_for_all_every_request_that_lives_has_its_block(
    doings: list[Deed], chosen: AllocatorSettings
) -> None:
    living: dict[int, Deed] = {}
    for deed, block in carried_out(doings):
        if deed.what == "alloc":
            living[block] = deed
        elif deed.what != "end":
            living.pop(block)
    outcome = replay(trace_of(doings), chosen, cap_bytes=None, with_end=True)
    assert outcome.end is not None
    found = [
        (segment.stream, block.requested_bytes)
        for segment in outcome.end
        for block in segment.blocks
        if block.state is BlockState.ACTIVE_ALLOCATED
    ]
    assert sorted(found) == sorted((deed.stream, deed.size_bytes) for deed in living.values())
    assert (outcome.ooms, outcome.alloc_retries, outcome.device_frees) == (0, 0, 0)
