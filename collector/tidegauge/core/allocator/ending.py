"""Results read from a replay's tables at its end. Source-compatible with Python 3.9."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.layout import (
    ALLOCATED,
    BLOCK_FIELDS,
    FAILURE_FIELDS,
    NONE,
    PENDING,
    UNMAPPED,
    UNUSED,
    Tables,
)
from tidegauge.core.allocator.results import MAX_FAILED, FailedRequest
from tidegauge.core.allocator.sizes import is_small_shelf
from tidegauge.core.allocator.trace import Action, BlockState, KnownBlock, KnownSegment, Trace

_STATES = {ALLOCATED: BlockState.ACTIVE_ALLOCATED, PENDING: BlockState.ACTIVE_PENDING_FREE}


def ranges_at_end(t: Tables) -> Iterator[list[int]]:
    """The blocks of each contiguous mapped range, as a snapshot takes it for a segment; in no order."""
    blocks = t.blocks
    for head in range(0, t.numbers[at.BLOCKS_END], BLOCK_FIELDS):
        if blocks[head + at.STATE] == UNUSED or blocks[head + at.PREVIOUS] != NONE:
            continue
        mapped: list[int] = []
        block = head
        while block != NONE:
            if blocks[block + at.STATE] != UNMAPPED:
                mapped.append(block)
            elif mapped:
                yield mapped
                mapped = []
            block = int(blocks[block + at.NEXT])
        if mapped:
            yield mapped


def segments_at_end(t: Tables, streams: Sequence[int], pools: Sequence[tuple[int, int]]) -> tuple[KnownSegment, ...]:
    """The segments by address. ``streams`` are the handles in order of their ranks."""
    known = [_segment(t, members, streams, pools) for members in ranges_at_end(t)]
    return tuple(sorted(known, key=lambda segment: segment.address))


def _segment(
    t: Tables, members: Sequence[int], streams: Sequence[int], pools: Sequence[tuple[int, int]]
) -> KnownSegment:
    blocks = t.blocks
    first = members[0]
    shelf = int(blocks[first + at.SHELF])
    return KnownSegment(
        address=int(blocks[first + at.START]),
        total_bytes=sum(int(blocks[block + at.SIZE]) for block in members),
        stream=streams[shelf % t.numbers[at.STREAMS]],
        is_large=not is_small_shelf(t.numbers, shelf),
        is_expandable=bool(blocks[first + at.RESERVATION] != NONE),
        pool=pools[shelf // t.numbers[at.STREAMS] // 2],
        blocks=tuple(
            KnownBlock(
                address=int(blocks[block + at.START]),
                size_bytes=int(blocks[block + at.SIZE]),
                requested_bytes=int(blocks[block + at.REQUESTED]) if blocks[block + at.STATE] in _STATES else 0,
                state=_STATES.get(int(blocks[block + at.STATE]), BlockState.INACTIVE),
            )
            for block in members
        ),
    )


def failed_requests(t: Tables, trace: Trace) -> tuple[FailedRequest, ...]:
    rows = min(int(t.numbers[at.FAILURES]), MAX_FAILED)
    found = []
    for row in range(at.FAILURES_AT, at.FAILURES_AT + rows * FAILURE_FIELDS, FAILURE_FIELDS):
        event, requested, rounded, segment, allocated, reserved, largest, free = (
            int(number) for number in t.numbers[row : row + FAILURE_FIELDS]
        )
        is_oom = trace.action[event] == Action.OOM
        found.append(
            FailedRequest(
                event=event,
                requested_bytes=0 if is_oom else requested,
                rounded_bytes=rounded,
                segment_bytes=segment,
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                largest_free_bytes=largest,
                free_bytes=free,
                recorded=is_oom,
            )
        )
    return tuple(found)
