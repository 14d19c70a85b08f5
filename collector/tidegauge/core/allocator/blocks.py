"""Blocks and their neighbours: made, split, merged."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import Numbers, compiled
from tidegauge.core.allocator.free_blocks import put, take
from tidegauge.core.allocator.layout import ALLOCATED, BLOCK_FIELDS, FREE, NONE, PENDING, UNUSED, Tables


@compiled
def new_block(t: Tables, start: int, size: int, shelf: int, state: int) -> int:
    """A block without neighbours. There is room: the replay sees to it before each event."""
    blocks, numbers = t.blocks, t.numbers
    block = numbers[at.SPARE_BLOCK]
    if block == NONE:
        block = numbers[at.BLOCKS_END]
        numbers[at.BLOCKS_END] = block + BLOCK_FIELDS
    else:
        numbers[at.SPARE_BLOCK] = blocks[block + at.NEXT]
    numbers[at.BLOCKS] += 1
    blocks[block + at.START] = start
    blocks[block + at.SIZE] = size
    blocks[block + at.REQUESTED] = 0
    blocks[block + at.STATE] = state
    blocks[block + at.PREVIOUS] = NONE
    blocks[block + at.NEXT] = NONE
    blocks[block + at.SHELF] = shelf
    blocks[block + at.RESERVATION] = NONE
    blocks[block + at.COUNTER] = 0
    return block


@compiled
def next_counter(t: Tables) -> int:
    t.numbers[at.LAST_COUNTER] += 1
    return t.numbers[at.LAST_COUNTER]


@compiled
def part_of(t: Tables, block: int, start: int, size: int, state: int) -> int:
    """A new block beside ``block``, of the same segment; not linked yet."""
    blocks = t.blocks
    part = new_block(t, start, size, blocks[block + at.SHELF], state)
    blocks[part + at.RESERVATION] = blocks[block + at.RESERVATION]
    blocks[part + at.COUNTER] = next_counter(t) if t.numbers[at.BLOCK_COUNTERS] else blocks[block + at.COUNTER]
    return part


@compiled
def drop_block(t: Tables, block: int) -> None:
    t.blocks[block + at.STATE] = UNUSED
    t.blocks[block + at.NEXT] = t.numbers[at.SPARE_BLOCK]
    t.numbers[at.SPARE_BLOCK] = block
    t.numbers[at.BLOCKS] -= 1


@compiled
def link(blocks: Numbers, before: int, block: int, after: int) -> None:
    """Put ``block`` between two neighbours, either of which may be NONE: ``splice``."""
    blocks[block + at.PREVIOUS] = before
    blocks[block + at.NEXT] = after
    if before != NONE:
        blocks[before + at.NEXT] = block
    if after != NONE:
        blocks[after + at.PREVIOUS] = block


@compiled
def is_split(blocks: Numbers, block: int) -> bool:
    return blocks[block + at.PREVIOUS] != NONE or blocks[block + at.NEXT] != NONE


@compiled
def is_held(blocks: Numbers, block: int) -> bool:
    """Whether the program or another stream still holds the block."""
    return blocks[block + at.STATE] == ALLOCATED or blocks[block + at.STATE] == PENDING


@compiled
def split_front(t: Tables, block: int, size: int) -> int:
    """The first ``size`` bytes of ``block``, which is in no set, as a block of their own; the rest becomes free."""
    blocks = t.blocks
    front = part_of(t, block, blocks[block + at.START], size, FREE)
    link(blocks, blocks[block + at.PREVIOUS], front, block)
    blocks[block + at.START] += size
    blocks[block + at.SIZE] -= size
    put(t, block)
    return front


@compiled
def merge(t: Tables, block: int, neighbour: int) -> None:
    """Let ``block``, in no set, swallow a neighbour that is free, or unmapped, like it: ``try_merge_blocks``."""
    blocks = t.blocks
    if neighbour == NONE or blocks[neighbour + at.STATE] != blocks[block + at.STATE]:
        return
    take(t, neighbour)
    if blocks[block + at.PREVIOUS] == neighbour:
        blocks[block + at.START] = blocks[neighbour + at.START]
        before = blocks[neighbour + at.PREVIOUS]
        blocks[block + at.PREVIOUS] = before
        if before != NONE:
            blocks[before + at.NEXT] = block
    else:
        after = blocks[neighbour + at.NEXT]
        blocks[block + at.NEXT] = after
        if after != NONE:
            blocks[after + at.PREVIOUS] = block
    blocks[block + at.SIZE] += blocks[neighbour + at.SIZE]
    drop_block(t, neighbour)


@compiled
def set_free(t: Tables, block: int) -> None:
    """Merge a block with what is free beside it and make it available: ``free_block``."""
    t.blocks[block + at.STATE] = FREE
    merge(t, block, t.blocks[block + at.PREVIOUS])
    merge(t, block, t.blocks[block + at.NEXT])
    put(t, block)
