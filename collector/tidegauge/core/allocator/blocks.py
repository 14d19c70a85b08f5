"""Blocks and their neighbours: made, split, merged. Source-compatible with Python 3.9."""

from __future__ import annotations

from tidegauge.core.allocator.compiled import Numbers, compiled
from tidegauge.core.allocator.free_blocks import put, take
from tidegauge.core.allocator.layout import (
    ALLOCATED,
    BLOCK_COUNTERS,
    BLOCK_FIELDS,
    BLOCKS,
    BLOCKS_END,
    COUNTER,
    FREE,
    LAST_COUNTER,
    NEXT,
    NONE,
    PENDING,
    PREVIOUS,
    REQUESTED,
    RESERVATION,
    SHELF,
    SIZE,
    SPARE_BLOCK,
    START,
    STATE,
    UNUSED,
    Tables,
)


@compiled
def new_block(t: Tables, start: int, size: int, shelf: int, state: int) -> int:
    """A block without neighbours. There is room: the replay sees to it before each event."""
    blocks, numbers = t.blocks, t.numbers
    block = numbers[SPARE_BLOCK]
    if block == NONE:
        block = numbers[BLOCKS_END]
        numbers[BLOCKS_END] = block + BLOCK_FIELDS
    else:
        numbers[SPARE_BLOCK] = blocks[block + NEXT]
    numbers[BLOCKS] += 1
    blocks[block + START] = start
    blocks[block + SIZE] = size
    blocks[block + REQUESTED] = 0
    blocks[block + STATE] = state
    blocks[block + PREVIOUS] = NONE
    blocks[block + NEXT] = NONE
    blocks[block + SHELF] = shelf
    blocks[block + RESERVATION] = NONE
    blocks[block + COUNTER] = 0
    return block


@compiled
def next_counter(t: Tables) -> int:
    t.numbers[LAST_COUNTER] += 1
    return t.numbers[LAST_COUNTER]


@compiled
def part_of(t: Tables, block: int, start: int, size: int, state: int) -> int:
    """A new block beside ``block``, of the same segment; not linked yet."""
    blocks = t.blocks
    part = new_block(t, start, size, blocks[block + SHELF], state)
    blocks[part + RESERVATION] = blocks[block + RESERVATION]
    blocks[part + COUNTER] = next_counter(t) if t.numbers[BLOCK_COUNTERS] else blocks[block + COUNTER]
    return part


@compiled
def drop_block(t: Tables, block: int) -> None:
    t.blocks[block + STATE] = UNUSED
    t.blocks[block + NEXT] = t.numbers[SPARE_BLOCK]
    t.numbers[SPARE_BLOCK] = block
    t.numbers[BLOCKS] -= 1


@compiled
def link(blocks: Numbers, before: int, block: int, after: int) -> None:
    """Put ``block`` between two neighbours, either of which may be NONE: ``splice``."""
    blocks[block + PREVIOUS] = before
    blocks[block + NEXT] = after
    if before != NONE:
        blocks[before + NEXT] = block
    if after != NONE:
        blocks[after + PREVIOUS] = block


@compiled
def is_split(blocks: Numbers, block: int) -> bool:
    return blocks[block + PREVIOUS] != NONE or blocks[block + NEXT] != NONE


@compiled
def is_held(blocks: Numbers, block: int) -> bool:
    """Whether the program or another stream still holds the block."""
    return blocks[block + STATE] == ALLOCATED or blocks[block + STATE] == PENDING


@compiled
def split_front(t: Tables, block: int, size: int) -> int:
    """The first ``size`` bytes of ``block``, which is in no set, as a block of their own; the rest becomes free."""
    blocks = t.blocks
    front = part_of(t, block, blocks[block + START], size, FREE)
    link(blocks, blocks[block + PREVIOUS], front, block)
    blocks[block + START] += size
    blocks[block + SIZE] -= size
    put(t, block)
    return front


@compiled
def merge(t: Tables, block: int, neighbour: int) -> None:
    """Let ``block``, in no set, swallow a neighbour that is free, or unmapped, like it: ``try_merge_blocks``."""
    blocks = t.blocks
    if neighbour == NONE or blocks[neighbour + STATE] != blocks[block + STATE]:
        return
    take(t, neighbour)
    if blocks[block + PREVIOUS] == neighbour:
        blocks[block + START] = blocks[neighbour + START]
        before = blocks[neighbour + PREVIOUS]
        blocks[block + PREVIOUS] = before
        if before != NONE:
            blocks[before + NEXT] = block
    else:
        after = blocks[neighbour + NEXT]
        blocks[block + NEXT] = after
        if after != NONE:
            blocks[after + PREVIOUS] = block
    blocks[block + SIZE] += blocks[neighbour + SIZE]
    drop_block(t, neighbour)


@compiled
def set_free(t: Tables, block: int) -> None:
    """Merge a block with what is free beside it and make it available: ``free_block``."""
    t.blocks[block + STATE] = FREE
    merge(t, block, t.blocks[block + PREVIOUS])
    merge(t, block, t.blocks[block + NEXT])
    put(t, block)
