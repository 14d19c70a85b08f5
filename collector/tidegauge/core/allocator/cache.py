"""Releases cached memory: all of it, oversize blocks, or old blocks. Allocator notes, 5.5."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.blocks import is_split
from tidegauge.core.allocator.compiled import compiled
from tidegauge.core.allocator.device import FREE_COMPLETED, is_next, release
from tidegauge.core.allocator.expandable import first_handle, unmap, whole_handles
from tidegauge.core.allocator.free_blocks import (
    block_at,
    first_from,
    first_on_shelf,
    is_end,
    is_on_shelf,
    next_place,
    previous_place,
)
from tidegauge.core.allocator.frees import complete_all, complete_at
from tidegauge.core.allocator.layout import MAX_TIES, NONE, SIZE_BITS, UNLIMITED, Record, Tables
from tidegauge.core.allocator.tables import block_in, slot_of


@compiled
def release_oversize(t: Tables, r: Record, shelf: int, size: int) -> bool:
    """Release oversize blocks of the stream; true if that was enough: ``release_available_cached_blocks``."""
    limit = t.numbers[at.MAX_SPLIT]
    if limit == UNLIMITED:
        return False
    wanted = max(size, limit)
    blocks = t.blocks
    place = first_on_shelf(t, shelf, wanted)
    if is_on_shelf(t, place, shelf) and blocks[block_at(t, place) + at.RESERVATION] == NONE:
        return release(t, r, block_at(t, place))
    found = 0
    place = previous_place(t, place)
    while place >= 0 and found < wanted:
        block = block_at(t, place)
        size_bytes = blocks[block + at.SIZE]
        if blocks[block + at.KEY] >> SIZE_BITS != shelf or size_bytes < limit:
            break
        key, tie, start = blocks[block + at.KEY], blocks[block + at.TIE], blocks[block + at.START]
        if blocks[block + at.RESERVATION] == NONE and release(t, r, block):
            found += size_bytes
        place = previous_place(t, first_from(t, key, tie, start))
    return found >= wanted


@compiled
def synchronize(t: Tables, r: Record) -> None:
    """Wait for the frees that other streams hold up; in the recorded order where that is followed."""
    if not t.numbers[at.FOLLOWS]:
        complete_all(t)
        return
    while is_next(t, r, FREE_COMPLETED):
        slot = slot_of(t, r.address[t.numbers[at.CURSOR]])
        if block_in(t, slot) == NONE:
            return
        complete_at(t, slot)
        t.numbers[at.CURSOR] += 1


@compiled
def gather(t: Tables, first_shelf: int, end_shelf: int) -> int:
    """Write the free blocks of these shelves to ``scratch``, in order; the answer is how many."""
    count = 0
    place = first_on_shelf(t, first_shelf, 0)
    while not is_end(t, place) and t.blocks[block_at(t, place) + at.KEY] >> SIZE_BITS < end_shelf:
        t.numbers[t.numbers[at.SCRATCH_AT] + count] = block_at(t, place)
        count += 1
        place = next_place(t, place)
    return count


@compiled
def given_back_at(t: Tables, block: int) -> int:
    """The address that a trace would name if this free block was given back."""
    return t.blocks[block + at.START] if t.blocks[block + at.RESERVATION] == NONE else first_handle(t, block)


@compiled
def bring_forward(t: Tables, r: Record, first: int, end: int) -> None:
    """Move the block that the recording releases next before equally large ones, in a trace that begins in the middle.

    Blocks are gathered in order, but which of the older segments was made first is not known.
    """
    blocks, numbers = t.blocks, t.numbers
    if not numbers[at.FOLLOWS] or numbers[at.AGES_KNOWN] or numbers[at.CURSOR] >= numbers[at.LIMIT]:
        return
    recorded = r.address[numbers[at.CURSOR]]
    other = first
    while other < min(end, first + MAX_TIES):
        block = numbers[other]
        if block != NONE and blocks[block + at.KEY] != blocks[numbers[first] + at.KEY]:
            return
        if block != NONE and given_back_at(t, block) == recorded:
            numbers[other] = numbers[first]
            numbers[first] = block
            return
        other += 1


@compiled
def release_shelves(t: Tables, r: Record, first_shelf: int, end_shelf: int) -> int:
    """Give back all free segments of these shelves, then unmap: ``release_blocks``. How many did not go as recorded."""
    blocks, numbers = t.blocks, t.numbers
    count = gather(t, first_shelf, end_shelf)
    begin = numbers[at.SCRATCH_AT]
    left = 0
    for k in range(begin, begin + count):
        bring_forward(t, r, k, begin + count)
        if blocks[numbers[k] + at.RESERVATION] == NONE:
            if not is_split(blocks, numbers[k]) and not release(t, r, numbers[k]):
                left += 1
            numbers[k] = NONE
    for k in range(begin, begin + count):
        if numbers[k] != NONE:
            bring_forward(t, r, k, begin + count)
            if not unmap(t, r, numbers[k]):
                left += 1
    return left


@compiled
def release_all(t: Tables, r: Record) -> int:
    """Wait for all streams and give back everything that is whole: ``release_cached_blocks``.

    Private pools go only while the recording is followed: it alone knows whether their graphs are gone. The answer is
    how many of the default pool did not go as recorded.
    """
    synchronize(t, r)
    streams = t.numbers[at.STREAMS]
    left = release_shelves(t, r, 0, streams)
    left += release_shelves(t, r, streams, 2 * streams)
    if t.numbers[at.FOLLOWS]:
        for first in range(2 * streams, t.numbers[at.SHELVES], 2 * streams):
            release_shelves(t, r, first + streams, first + 2 * streams)
            release_shelves(t, r, first, first + streams)
    return left


@compiled
def releasable(t: Tables) -> int:
    """The number of segments of the default pool and of expandable ranges that ``empty_cache()`` would release."""
    blocks = t.blocks
    found = 0
    place = first_on_shelf(t, 0, 0)
    while not is_end(t, place) and blocks[block_at(t, place) + at.KEY] >> SIZE_BITS < 2 * t.numbers[at.STREAMS]:
        block = block_at(t, place)
        if blocks[block + at.RESERVATION] == NONE:
            found += 0 if is_split(blocks, block) else 1
        elif whole_handles(t, block) > 0:
            found += 1
        place = next_place(t, place)
    return found


@compiled
def collect_garbage(t: Tables, r: Record) -> int:
    """Give back the older half of the unused large segments, until enough: ``garbage_collect_cached_blocks``.

    The answer is how many did not go as recorded. Where ages are not known, the recording alone says what went.
    """
    blocks, numbers = t.blocks, t.numbers
    wanted = numbers[at.RESERVED_BYTES] - numbers[at.COLLECT_ABOVE]
    if not numbers[at.COLLECTS] or wanted <= 0 or not numbers[at.AGES_KNOWN]:
        return 0
    count = gather(t, 0, t.numbers[at.STREAMS])
    begin = numbers[at.SCRATCH_AT]
    total_age = 0
    whole = 0
    for k in range(begin, begin + count):
        if not is_split(blocks, numbers[k]):
            total_age += numbers[at.SEARCHES] - blocks[numbers[k] + at.BORN]
            whole += 1
    left = 0
    reclaimed = 0
    freed = True
    while reclaimed < wanted and freed and whole > 0:
        freed = False
        threshold = total_age / whole
        for k in range(begin, begin + count):
            block = numbers[k]
            if block == NONE or is_split(blocks, block) or blocks[block + at.RESERVATION] != NONE:
                continue
            age = numbers[at.SEARCHES] - blocks[block + at.BORN]
            if age >= threshold:
                freed = True
                reclaimed += blocks[block + at.SIZE]
                total_age -= age
                whole -= 1
                numbers[k] = NONE
                if not release(t, r, block):
                    left += 1
    return left
