"""Expandable segments: address space mapped and unmapped in handles of 2 or 20 MiB. Allocator notes, 5.4, 5.5.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from tidegauge.core.allocator.blocks import drop_block, is_held, link, merge, new_block, part_of
from tidegauge.core.allocator.compiled import Numbers, compiled
from tidegauge.core.allocator.device import (
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    first_counter,
    grow_reserved,
    has_memory,
    is_next,
    is_next_at,
    note_mismatch,
    own_address,
)
from tidegauge.core.allocator.free_blocks import block_at, first_on_shelf, is_on_shelf, next_place, put, take
from tidegauge.core.allocator.layout import (
    COUNTER,
    CURSOR,
    DEVICE_BYTES,
    DEVICE_FREES,
    FOLLOWS,
    FREE,
    NEXT,
    NONE,
    PREVIOUS,
    RESERVATION,
    RESERVED_BYTES,
    SHELF,
    SHELVES,
    SIZE,
    START,
    STATE,
    UNMAPPED,
    Record,
    Tables,
)
from tidegauge.core.allocator.sizes import handle_bytes


@compiled
def expanded_size(blocks: Numbers, block: int) -> int:
    """The size to which the block could grow; best fit uses it."""
    after = blocks[block + NEXT]
    if after != NONE and blocks[after + STATE] == UNMAPPED:
        return blocks[block + SIZE] + blocks[after + SIZE]
    return blocks[block + SIZE]


@compiled
def has_address_space(blocks: Numbers, block: int, size: int) -> bool:
    """Whether ``size`` bytes from here on are free or unmapped."""
    found = 0
    while found < size and block != NONE and not is_held(blocks, block):
        found += blocks[block + SIZE]
        block = blocks[block + NEXT]
    return found >= size


@compiled
def new_reservation(t: Tables, r: Record, shelf: int) -> int:
    """Address space for all of the device and an eighth more, unmapped."""
    handle = handle_bytes(t.numbers, shelf)
    size = (t.numbers[DEVICE_BYTES] + t.numbers[DEVICE_BYTES] // 8 + handle - 1) // handle * handle
    if t.numbers[FOLLOWS] and is_next(t, r, SEGMENT_MAP):
        address = r.address[t.numbers[CURSOR]]
    else:
        address = own_address(t, size)
    block = new_block(t, address, size, shelf, UNMAPPED)
    t.blocks[block + RESERVATION] = address
    t.blocks[block + COUNTER] = first_counter(t)
    put(t, block)
    return block


@compiled
def place_to_grow(t: Tables, r: Record, shelf: int, size: int) -> int:
    """The lowest block from which on there is address space: ``find_expandable_block``."""
    blocks = t.blocks
    unmapped_shelf = t.numbers[SHELVES] + shelf
    place = first_on_shelf(t, unmapped_shelf, 0)
    while is_on_shelf(t, place, unmapped_shelf):
        block = block_at(t, place)
        before = blocks[block + PREVIOUS]
        if before != NONE and not is_held(blocks, before):
            block = before
        if has_address_space(blocks, block, size):
            return block
        place = next_place(t, place)
    return new_reservation(t, r, shelf)


@compiled
def map_front(t: Tables, r: Record, block: int, size: int) -> bool:
    """Map the first ``size`` bytes of an unmapped block, in whole handles, and merge: ``map_block``."""
    blocks = t.blocks
    handle = handle_bytes(t.numbers, blocks[block + SHELF])
    mapped = min((size + handle - 1) // handle * handle, blocks[block + SIZE])
    start = blocks[block + START]
    if t.numbers[FOLLOWS]:
        cursor = t.numbers[CURSOR]
        if not is_next(t, r, SEGMENT_MAP):
            return False
        if not is_next_at(t, r, SEGMENT_MAP, start, mapped):
            note_mismatch(t, cursor, r.address[cursor], start)
            t.numbers[CURSOR] = cursor + 1
    elif not has_memory(t, mapped):
        return False
    take(t, block)
    blocks[block + STATE] = FREE
    if mapped < blocks[block + SIZE]:
        rest = part_of(t, block, start + mapped, blocks[block + SIZE] - mapped, UNMAPPED)
        link(blocks, block, rest, blocks[block + NEXT])
        blocks[block + SIZE] = mapped
        put(t, rest)
    merge(t, block, blocks[block + PREVIOUS])
    merge(t, block, blocks[block + NEXT])
    put(t, block)
    grow_reserved(t, mapped)
    return True


@compiled
def expand(t: Tables, r: Record, shelf: int, size: int) -> int:
    """A free block of at least ``size`` bytes, in no set; NONE where mapping fails: ``try_allocate_expandable_block``.

    What was mapped before it failed stays mapped.
    """
    blocks = t.blocks
    block = place_to_grow(t, r, shelf, size)
    if blocks[block + STATE] == UNMAPPED and not map_front(t, r, block, min(blocks[block + SIZE], size)):
        return NONE
    while blocks[block + SIZE] < size:
        after = blocks[block + NEXT]
        if not map_front(t, r, after, min(size - blocks[block + SIZE], blocks[after + SIZE])):
            return NONE
        block = after
    take(t, block)
    return block


@compiled
def first_handle(t: Tables, block: int) -> int:
    """The address of the first handle that begins in the block or behind it."""
    handle = handle_bytes(t.numbers, t.blocks[block + SHELF])
    base = t.blocks[block + RESERVATION]
    return base + (t.blocks[block + START] - base + handle - 1) // handle * handle


@compiled
def whole_handles(t: Tables, block: int) -> int:
    """Bytes of the handles that lie within the block; 0 or less where none does."""
    handle = handle_bytes(t.numbers, t.blocks[block + SHELF])
    base = t.blocks[block + RESERVATION]
    end = base + (t.blocks[block + START] + t.blocks[block + SIZE] - base) // handle * handle
    return end - first_handle(t, block)


@compiled
def unmap(t: Tables, r: Record, block: int) -> bool:
    """Unmap the whole handles inside a free block: ``unmap_block``; false where the recording did not."""
    blocks = t.blocks
    size = whole_handles(t, block)
    if size <= 0:
        return True
    start, end = blocks[block + START], blocks[block + START] + blocks[block + SIZE]
    low = first_handle(t, block)
    high = low + size
    if t.numbers[FOLLOWS] and not is_next_at(t, r, SEGMENT_UNMAP, low, size):
        return False
    take(t, block)
    if low > start:
        before = part_of(t, block, start, low - start, FREE)
        link(blocks, blocks[block + PREVIOUS], before, block)
        put(t, before)
    if end > high:
        after = part_of(t, block, high, end - high, FREE)
        link(blocks, block, after, blocks[block + NEXT])
        put(t, after)
    blocks[block + START] = low
    blocks[block + SIZE] = high - low
    blocks[block + STATE] = UNMAPPED
    merge(t, block, blocks[block + PREVIOUS])
    merge(t, block, blocks[block + NEXT])
    t.numbers[RESERVED_BYTES] -= high - low
    t.numbers[DEVICE_FREES] += 1
    if blocks[block + PREVIOUS] == NONE and blocks[block + NEXT] == NONE:
        drop_block(t, block)  # nothing of the address space is mapped: it is given back, too
    else:
        put(t, block)
    return True
