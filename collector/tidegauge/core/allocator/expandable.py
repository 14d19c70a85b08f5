"""Expandable segments: address space mapped and unmapped in handles of 2 or 20 MiB. Allocator notes, 5.4, 5.5."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
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
from tidegauge.core.allocator.layout import FREE, NONE, UNMAPPED, Record, Tables
from tidegauge.core.allocator.sizes import handle_bytes


@compiled
def expanded_size(blocks: Numbers, block: int) -> int:
    """The size to which the block could grow; best fit uses it."""
    after = blocks[block + at.NEXT]
    if after != NONE and blocks[after + at.STATE] == UNMAPPED:
        return blocks[block + at.SIZE] + blocks[after + at.SIZE]
    return blocks[block + at.SIZE]


@compiled
def has_address_space(blocks: Numbers, block: int, size: int) -> bool:
    """Whether ``size`` bytes from here on are free or unmapped."""
    found = 0
    while found < size and block != NONE and not is_held(blocks, block):
        found += blocks[block + at.SIZE]
        block = blocks[block + at.NEXT]
    return found >= size


@compiled
def new_reservation(t: Tables, r: Record, shelf: int) -> int:
    """Address space for all of the device and an eighth more, unmapped."""
    handle = handle_bytes(t.numbers, shelf)
    size = (t.numbers[at.DEVICE_BYTES] + t.numbers[at.DEVICE_BYTES] // 8 + handle - 1) // handle * handle
    if t.numbers[at.FOLLOWS] and is_next(t, r, SEGMENT_MAP):
        address = r.address[t.numbers[at.CURSOR]]
    else:
        address = own_address(t, size)
    block = new_block(t, address, size, shelf, UNMAPPED)
    t.blocks[block + at.RESERVATION] = address
    t.blocks[block + at.COUNTER] = first_counter(t)
    put(t, block)
    return block


@compiled
def place_to_grow(t: Tables, r: Record, shelf: int, size: int) -> int:
    """The lowest block from which on there is address space: ``find_expandable_block``."""
    blocks = t.blocks
    unmapped_shelf = t.numbers[at.SHELVES] + shelf
    place = first_on_shelf(t, unmapped_shelf, 0)
    while is_on_shelf(t, place, unmapped_shelf):
        block = block_at(t, place)
        before = blocks[block + at.PREVIOUS]
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
    handle = handle_bytes(t.numbers, blocks[block + at.SHELF])
    mapped = min((size + handle - 1) // handle * handle, blocks[block + at.SIZE])
    start = blocks[block + at.START]
    if t.numbers[at.FOLLOWS]:
        cursor = t.numbers[at.CURSOR]
        if not is_next(t, r, SEGMENT_MAP):
            return False
        if not is_next_at(t, r, SEGMENT_MAP, start, mapped):
            note_mismatch(t, cursor, r.address[cursor], start)
            t.numbers[at.CURSOR] = cursor + 1
    elif not has_memory(t, mapped):
        return False
    take(t, block)
    blocks[block + at.STATE] = FREE
    if mapped < blocks[block + at.SIZE]:
        rest = part_of(t, block, start + mapped, blocks[block + at.SIZE] - mapped, UNMAPPED)
        link(blocks, block, rest, blocks[block + at.NEXT])
        blocks[block + at.SIZE] = mapped
        put(t, rest)
    merge(t, block, blocks[block + at.PREVIOUS])
    merge(t, block, blocks[block + at.NEXT])
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
    if blocks[block + at.STATE] == UNMAPPED and not map_front(t, r, block, min(blocks[block + at.SIZE], size)):
        return NONE
    while blocks[block + at.SIZE] < size:
        after = blocks[block + at.NEXT]
        if not map_front(t, r, after, min(size - blocks[block + at.SIZE], blocks[after + at.SIZE])):
            return NONE
        block = after
    take(t, block)
    return block


@compiled
def first_handle(t: Tables, block: int) -> int:
    """The address of the first handle that begins in the block or behind it."""
    handle = handle_bytes(t.numbers, t.blocks[block + at.SHELF])
    base = t.blocks[block + at.RESERVATION]
    return base + (t.blocks[block + at.START] - base + handle - 1) // handle * handle


@compiled
def whole_handles(t: Tables, block: int) -> int:
    """Bytes of the handles that lie within the block; 0 or less where none does."""
    handle = handle_bytes(t.numbers, t.blocks[block + at.SHELF])
    base = t.blocks[block + at.RESERVATION]
    end = base + (t.blocks[block + at.START] + t.blocks[block + at.SIZE] - base) // handle * handle
    return end - first_handle(t, block)


@compiled
def unmap(t: Tables, r: Record, block: int) -> bool:
    """Unmap the whole handles inside a free block: ``unmap_block``; false where the recording did not."""
    blocks = t.blocks
    size = whole_handles(t, block)
    if size <= 0:
        return True
    start, end = blocks[block + at.START], blocks[block + at.START] + blocks[block + at.SIZE]
    low = first_handle(t, block)
    high = low + size
    if t.numbers[at.FOLLOWS] and not is_next_at(t, r, SEGMENT_UNMAP, low, size):
        return False
    take(t, block)
    if low > start:
        before = part_of(t, block, start, low - start, FREE)
        link(blocks, blocks[block + at.PREVIOUS], before, block)
        put(t, before)
    if end > high:
        after = part_of(t, block, high, end - high, FREE)
        link(blocks, block, after, blocks[block + at.NEXT])
        put(t, after)
    blocks[block + at.START] = low
    blocks[block + at.SIZE] = high - low
    blocks[block + at.STATE] = UNMAPPED
    merge(t, block, blocks[block + at.PREVIOUS])
    merge(t, block, blocks[block + at.NEXT])
    t.numbers[at.RESERVED_BYTES] -= high - low
    t.numbers[at.DEVICE_FREES] += 1
    if blocks[block + at.PREVIOUS] == NONE and blocks[block + at.NEXT] == NONE:
        drop_block(t, block)  # nothing of the address space is mapped: it is given back, too
    else:
        put(t, block)
    return True
