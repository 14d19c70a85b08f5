"""The free blocks in the allocator's order: ``BlockPool::blocks`` of all pools and streams, and their unmapped ranges.

One ordered sequence in chunks: a search is two binary ones, a change moves at most a chunk. A place in it is a number,
``chunk's place in the order * CHUNK + place in the chunk``.
"""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import Numbers, compiled, move
from tidegauge.core.allocator.layout import CHUNK, CHUNK_BITS, FREE, SIZE_BITS, Tables


@compiled
def is_later(blocks: Numbers, block: int, tie: int, start: int) -> bool:
    """Whether a block of the same key lies at or after the given place."""
    other = blocks[block + at.TIE]
    return other > tie or (other == tie and blocks[block + at.START] >= start)


@compiled
def first_from(t: Tables, key: int, tie: int, start: int) -> int:
    """The place of the first block that is not before this key, or the end."""
    blocks, numbers = t.blocks, t.numbers
    order, lengths, chunks = numbers[at.ORDER_AT], numbers[at.LENGTHS_AT], numbers[at.CHUNKS_AT]
    low = 0
    high = numbers[at.CHUNKS]
    while low < high:
        middle = (low + high) >> 1
        chunk = numbers[order + middle]
        block = numbers[chunks + (chunk << CHUNK_BITS) + numbers[lengths + chunk] - 1]
        other = blocks[block + at.KEY]
        if other > key or (other == key and is_later(blocks, block, tie, start)):
            high = middle
        else:
            low = middle + 1
    place = low << CHUNK_BITS
    if low == numbers[at.CHUNKS]:
        return place
    chunk = numbers[order + low]
    begin = chunks + (chunk << CHUNK_BITS)
    low = begin
    high = begin + numbers[lengths + chunk] - 1
    while low < high:
        middle = (low + high) >> 1
        block = numbers[middle]
        other = blocks[block + at.KEY]
        if other > key or (other == key and is_later(blocks, block, tie, start)):
            high = middle
        else:
            low = middle + 1
    return place + low - begin


@compiled
def first_on_shelf(t: Tables, shelf: int, size: int) -> int:
    """The place of the smallest block of at least ``size`` bytes on the shelf, or of what comes behind."""
    return first_from(t, (shelf << SIZE_BITS) + (size >> 9), -1, -1)


@compiled
def is_end(t: Tables, place: int) -> bool:
    return place >= t.numbers[at.CHUNKS] << CHUNK_BITS


@compiled
def chunk_at(t: Tables, where: int) -> int:
    """The chunk that is there in the order."""
    return t.numbers[t.numbers[at.ORDER_AT] + where]


@compiled
def length_of(t: Tables, chunk: int) -> int:
    return t.numbers[t.numbers[at.LENGTHS_AT] + chunk]


@compiled
def block_at(t: Tables, place: int) -> int:
    chunk = chunk_at(t, place >> CHUNK_BITS)
    return t.numbers[t.numbers[at.CHUNKS_AT] + (chunk << CHUNK_BITS) + (place & (CHUNK - 1))]


@compiled
def is_on_shelf(t: Tables, place: int, shelf: int) -> bool:
    """Whether there is a free block of this shelf at the place."""
    return not is_end(t, place) and t.blocks[block_at(t, place) + at.KEY] >> SIZE_BITS == shelf


@compiled
def next_place(t: Tables, place: int) -> int:
    if (place & (CHUNK - 1)) + 1 < length_of(t, chunk_at(t, place >> CHUNK_BITS)):
        return place + 1
    return ((place >> CHUNK_BITS) + 1) << CHUNK_BITS


@compiled
def previous_place(t: Tables, place: int) -> int:
    """The place before, which may be the end; -1 before the first."""
    if place & (CHUNK - 1):
        return place - 1
    where = (place >> CHUNK_BITS) - 1
    if where < 0:
        return -1
    return (where << CHUNK_BITS) + length_of(t, chunk_at(t, where)) - 1


@compiled
def put(t: Tables, block: int) -> None:
    """Sort in a block that is free or unmapped now: ``insert_into_blocks``."""
    blocks = t.blocks
    if blocks[block + at.STATE] == FREE:
        blocks[block + at.KEY] = (blocks[block + at.SHELF] << SIZE_BITS) + (blocks[block + at.SIZE] >> 9)
        blocks[block + at.TIE] = blocks[block + at.COUNTER]
        blocks[block + at.BORN] = t.numbers[at.SEARCHES]
    else:
        blocks[block + at.KEY] = (t.numbers[at.SHELVES] + blocks[block + at.SHELF]) << SIZE_BITS
        blocks[block + at.TIE] = 0
    place = first_from(t, blocks[block + at.KEY], blocks[block + at.TIE], blocks[block + at.START])
    _insert_at(t, place, block)


@compiled
def take(t: Tables, block: int) -> None:
    """Sort out a block, before anything that orders it changes."""
    blocks = t.blocks
    _remove_at(t, first_from(t, blocks[block + at.KEY], blocks[block + at.TIE], blocks[block + at.START]))


@compiled
def _insert_at(t: Tables, place: int, block: int) -> None:
    numbers = t.numbers
    lengths = numbers[at.LENGTHS_AT]
    where = place >> CHUNK_BITS
    offset = place & (CHUNK - 1)
    if where == numbers[at.CHUNKS]:  # behind all: in the last chunk, or in the first one there is
        if where == 0:
            numbers[at.CHUNKS] = 1
            numbers[lengths + chunk_at(t, 0)] = 0
        else:
            where -= 1
            offset = length_of(t, chunk_at(t, where))
    chunk = chunk_at(t, where)
    if numbers[lengths + chunk] == CHUNK:
        spare = _split_chunk(t, where)
        if offset > CHUNK >> 1:
            chunk = spare
            offset -= CHUNK >> 1
    first = numbers[at.CHUNKS_AT] + (chunk << CHUNK_BITS)
    move(numbers, first + offset, first + numbers[lengths + chunk], first + offset + 1)
    numbers[first + offset] = block
    numbers[lengths + chunk] += 1


@compiled
def _split_chunk(t: Tables, where: int) -> int:
    """Move the upper half of a full chunk to a new one behind it, which is the answer."""
    numbers = t.numbers
    order, lengths, chunks = numbers[at.ORDER_AT], numbers[at.LENGTHS_AT], numbers[at.CHUNKS_AT]
    used = numbers[at.CHUNKS]
    half = CHUNK >> 1
    chunk, spare = numbers[order + where], numbers[order + used]
    move(numbers, order + where + 1, order + used, order + where + 2)
    numbers[order + where + 1] = spare
    numbers[at.CHUNKS] = used + 1
    begin = chunks + (chunk << CHUNK_BITS)
    move(numbers, begin + half, begin + CHUNK, chunks + (spare << CHUNK_BITS))
    numbers[lengths + chunk] = half
    numbers[lengths + spare] = half
    return spare


@compiled
def _remove_at(t: Tables, place: int) -> None:
    numbers = t.numbers
    where = place >> CHUNK_BITS
    chunk = chunk_at(t, where)
    begin = numbers[at.CHUNKS_AT] + (chunk << CHUNK_BITS) + (place & (CHUNK - 1))
    length = length_of(t, chunk) - 1
    move(numbers, begin + 1, numbers[at.CHUNKS_AT] + (chunk << CHUNK_BITS) + length + 1, begin)
    numbers[numbers[at.LENGTHS_AT] + chunk] = length
    if length < CHUNK >> 2:
        # Two chunks side by side always hold more than half a chunk together: so there are never many of them.
        most = CHUNK if length == 0 else CHUNK >> 1
        if where + 1 < numbers[at.CHUNKS] and length + length_of(t, chunk_at(t, where + 1)) <= most:
            _absorb_next(t, where)
        elif where > 0 and length + length_of(t, chunk_at(t, where - 1)) <= most:
            _absorb_next(t, where - 1)
        elif length == 0:
            numbers[at.CHUNKS] = 0  # it was the only one


@compiled
def _absorb_next(t: Tables, where: int) -> None:
    """Move a chunk's blocks to the end of the one before it."""
    numbers = t.numbers
    order, lengths, chunks = numbers[at.ORDER_AT], numbers[at.LENGTHS_AT], numbers[at.CHUNKS_AT]
    used = numbers[at.CHUNKS]
    chunk, other = numbers[order + where], numbers[order + where + 1]
    source = chunks + (other << CHUNK_BITS)
    target = chunks + (chunk << CHUNK_BITS) + numbers[lengths + chunk]
    move(numbers, source, source + numbers[lengths + other], target)
    numbers[lengths + chunk] += numbers[lengths + other]
    move(numbers, order + where + 2, order + used, order + where + 1)
    numbers[order + used - 1] = other
    numbers[at.CHUNKS] = used - 1
