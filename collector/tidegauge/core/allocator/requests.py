"""Serves one memory request, as ``DeviceCachingAllocator::malloc`` does. Allocator notes, 4.5 and 5.4."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.blocks import split_front
from tidegauge.core.allocator.cache import collect_garbage, release_all, release_oversize
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.device import (
    FREE_COMPLETED,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    is_next,
    is_over_cap,
    new_segment,
    note_mismatch,
)
from tidegauge.core.allocator.expandable import expand, expanded_size
from tidegauge.core.allocator.free_blocks import block_at, first_on_shelf, is_on_shelf, next_place, previous_place, take
from tidegauge.core.allocator.layout import ALLOCATED, FAILURE_FIELDS, MAX_TIES, NONE, Record, Tables
from tidegauge.core.allocator.results import MAX_FAILED
from tidegauge.core.allocator.sizes import is_small_shelf, segment_bytes
from tidegauge.core.allocator_sizes import MAX_SMALL_BYTES, MIN_BLOCK_BYTES


@compiled
def best_fit(t: Tables, shelf: int, size: int) -> int:
    """The free block that serves the request, still in its set; or NONE: ``get_free_block``."""
    blocks, numbers = t.blocks, t.numbers
    place = first_on_shelf(t, shelf, size)
    if not is_on_shelf(t, place, shelf):
        return NONE
    block = block_at(t, place)
    if blocks[block + at.RESERVATION] != NONE:
        place = next_place(t, place)
        if numbers[at.EXPANDABLE]:
            while blocks[block + at.RESERVATION] != NONE and is_on_shelf(t, place, shelf):
                other = block_at(t, place)
                if expanded_size(blocks, other) >= expanded_size(blocks, block):
                    break
                block = other
                place = next_place(t, place)
        else:
            while is_on_shelf(t, place, shelf) and blocks[block_at(t, place) + at.RESERVATION] != NONE:
                place = next_place(t, place)
            if not is_on_shelf(t, place, shelf):
                return NONE
            block = block_at(t, place)
    if size < numbers[at.MAX_SPLIT] and blocks[block + at.SIZE] >= numbers[at.MAX_SPLIT]:
        return NONE
    if size >= numbers[at.MAX_SPLIT] and blocks[block + at.SIZE] >= size + numbers[at.NON_SPLIT_ROUNDING]:
        return NONE
    return block


@compiled
def gives_back_next(t: Tables, r: Record) -> bool:
    """Whether the next recorded event releases memory."""
    return is_next(t, r, SEGMENT_FREE) or is_next(t, r, SEGMENT_UNMAP)


@compiled
def from_device(t: Tables, r: Record, shelf: int, size: int, segment: int) -> int:
    """A block from new memory, in no set, or NONE: ``alloc_block``. The cap is held against the nominal size."""
    if gives_back_next(t, r):
        return NONE
    if not t.numbers[at.EXPANDABLE]:
        return new_segment(t, r, shelf, segment)
    if is_over_cap(t, segment) and not (t.numbers[at.FOLLOWS] and is_next(t, r, SEGMENT_MAP)):
        return NONE
    return expand(t, r, shelf, size)


@compiled
def note_failure(t: Tables, event: int, shelf: int, requested: int, size: int) -> None:
    """Keep the circumstances of a request that needs more from the device than there is, for the case that it fails."""
    numbers = t.numbers
    if numbers[at.FAILURES] >= MAX_FAILED:
        return
    last = previous_place(t, first_on_shelf(t, shelf + 1, 0))
    largest = 0
    if last >= 0 and is_on_shelf(t, last, shelf):
        largest = t.blocks[block_at(t, last) + at.SIZE]
    row = at.FAILURES_AT + numbers[at.FAILURES] * FAILURE_FIELDS
    numbers[row] = event
    numbers[row + 1] = requested
    numbers[row + 2] = size
    numbers[row + 3] = segment_bytes(numbers, size)
    numbers[row + 4] = numbers[at.ALLOCATED_BYTES]
    numbers[row + 5] = numbers[at.RESERVED_BYTES]
    numbers[row + 6] = largest
    numbers[row + 7] = numbers[at.RESERVED_BYTES] - numbers[at.ACTIVE_BYTES]


@compiled
def may_flush(t: Tables, r: Record, shelf: int) -> bool:
    """Whether a failed request releases the cache of the default pool."""
    return shelf < t.numbers[at.FLUSHING_SHELVES] or gives_back_next(t, r)


@compiled
def grow(t: Tables, r: Record, event: int, shelf: int, requested: int, size: int) -> int:
    """A block in no set for a request that no free block serves, or NONE: the ladder before an OOM."""
    numbers = t.numbers
    segment = segment_bytes(numbers, size)
    left = collect_garbage(t, r)
    block = from_device(t, r, shelf, size, segment)
    if block == NONE:
        note_failure(t, event, shelf, requested, size)
        if release_oversize(t, r, shelf, size):
            block = from_device(t, r, shelf, size, segment)
        if block == NONE and may_flush(t, r, shelf):
            left += release_all(t, r)
            block = served_by_flush(t, r, shelf, size)
            if block == NONE:
                numbers[at.RETRIES] += 1
                # The pool is not searched again, though what streams held up may serve now: pytorch#189504.
                block = from_device(t, r, shelf, size, segment)
    if left > 0:
        note_mismatch(t, event, 0, 0)
    return block


@compiled
def served_by_flush(t: Tables, r: Record, shelf: int, size: int) -> int:
    """The block that the recording goes on with where it was the program that gave back the cache, not this request.

    With expandable segments that alone tells the two apart: what is left of a range may serve without being mapped.
    """
    numbers = t.numbers
    if not numbers[at.MAY_BE_CALL] or numbers[at.CURSOR] < numbers[at.LIMIT]:
        return NONE
    block = best_fit(t, shelf, size)
    if block == NONE or t.blocks[block + at.START] != r.address[numbers[at.LIMIT]]:
        return NONE
    take(t, block)
    return block


@compiled
def hand_out(t: Tables, block: int, shelf: int, size: int, requested: int) -> int:
    """Split what is too much off a block that is in no set, and count the rest as allocated: ``alloc_found_block``."""
    blocks, numbers = t.blocks, t.numbers
    rest = blocks[block + at.SIZE] - size
    if is_small_shelf(numbers, shelf) or numbers[at.EXPANDABLE]:
        if rest >= MIN_BLOCK_BYTES:
            block = split_front(t, block, size)
    elif size < numbers[at.MAX_SPLIT] and rest > MAX_SMALL_BYTES:
        block = split_front(t, block, size)
    blocks[block + at.STATE] = ALLOCATED
    blocks[block + at.REQUESTED] = requested
    numbers[at.REQUESTED_BYTES] += requested
    numbers[at.ACTIVE_BYTES] += blocks[block + at.SIZE]
    allocated = numbers[at.ALLOCATED_BYTES] + blocks[block + at.SIZE]
    numbers[at.ALLOCATED_BYTES] = allocated
    if allocated > numbers[at.PEAK_ALLOCATED]:
        numbers[at.PEAK_ALLOCATED] = allocated
        numbers[at.REQUESTED_AT_PEAK] = numbers[at.REQUESTED_BYTES]
    if allocated > numbers[at.WINDOW_ALLOCATED]:
        numbers[at.WINDOW_ALLOCATED] = allocated
    if numbers[at.ACTIVE_BYTES] > numbers[at.PEAK_ACTIVE]:
        numbers[at.PEAK_ACTIVE] = numbers[at.ACTIVE_BYTES]
    return block


@compiled
def note_tie(t: Tables, event: int, recorded: int, replayed: int) -> None:
    numbers = t.numbers
    if numbers[at.TIES] == 0:
        numbers[at.FIRST_TIE] = event
        numbers[at.TIE_RECORDED] = recorded
        numbers[at.TIE_REPLAYED] = replayed
    numbers[at.TIES] += 1


@compiled
def as_recorded(t: Tables, r: Record, event: int, shelf: int, size: int, block: int) -> int:
    """The recorded block if it is as large as ``block``, else ``block``.

    For traces that begin in the middle: which of the older segments was made first decides, and no file says it.
    """
    blocks = t.blocks
    key = blocks[block + at.KEY]
    place = first_on_shelf(t, shelf, size)
    seen = 0
    while is_on_shelf(t, place, shelf) and blocks[block_at(t, place) + at.KEY] <= key and seen < MAX_TIES:
        other = block_at(t, place)
        if blocks[other + at.KEY] == key and blocks[other + at.START] == r.address[event]:
            if other != block:
                note_tie(t, event, r.address[event], blocks[block + at.START])
            return other
        place = next_place(t, place)
        seen += 1
    return block


@compiled
def found_before(t: Tables, r: Record, block: int) -> bool:
    """Whether the request could have found this block at once, and not only through a free that it waited for itself.

    What is recorded of a request begins with the frees whose end it brought about; they look like any other.
    """
    if not t.numbers[at.FOLLOWS] or t.numbers[at.LIMIT] == 0:
        return True
    start, end = t.blocks[block + at.START], t.blocks[block + at.START] + t.blocks[block + at.SIZE]
    other = t.numbers[at.BEGUN] - 1
    while other >= 0 and r.action[other] == FREE_COMPLETED:
        if start <= r.address[other] < end:
            return False
        other -= 1
    return True
