"""Block and segment sizes for a requested size. Allocator notes, 5.1 to 5.3."""

from __future__ import annotations

from tidegauge.core.allocator import layout as at
from tidegauge.core.allocator.compiled import Numbers, compiled, entry_point
from tidegauge.core.allocator_sizes import (
    MAX_SMALL_BYTES,
    MIN_BLOCK_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SEGMENT_STEP_BYTES,
    SMALL_SEGMENT_BYTES,
)

LARGEST_BUCKET = 15
"""Of ``roundup_power2_divisions``: 32 GiB and more. The first is for everything below 2 MiB."""


@entry_point
def rounded_size(rules: Numbers, requested: int) -> int:
    """The block's size for a request, in bytes: ``round_size``."""
    if requested < MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    if rules[at.DIVIDES]:
        power = 9
        while requested >> (power + 1):
            power += 1
        division = rules[at.DIVISIONS + min(max(power - 20, 0), LARGEST_BUCKET)]
        if division > 1 and requested > MIN_BLOCK_BYTES * division:
            step = (1 << power) // division
            return (requested + step - 1) // step * step
    return (requested + MIN_BLOCK_BYTES - 1) // MIN_BLOCK_BYTES * MIN_BLOCK_BYTES


@compiled
def segment_bytes(rules: Numbers, rounded: int) -> int:
    """The segment size that the device is asked for, given the block's size: ``get_allocation_size``."""
    if rounded <= MAX_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded < MIN_OWN_SEGMENT_BYTES:
        return rules[at.LARGE_SEGMENT]
    return (rounded + SEGMENT_STEP_BYTES - 1) // SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES


@compiled
def shelf_of(rules: Numbers, pool: int, stream_rank: int, is_small: int) -> int:
    """The set of free blocks for a request. In order of shelves ``release_cached_blocks`` goes: large before small."""
    return (pool * 2 + is_small) * rules[at.STREAMS] + stream_rank


@entry_point
def is_small_shelf(rules: Numbers, shelf: int) -> bool:
    return (shelf // rules[at.STREAMS]) % 2 == 1


@compiled
def handle_bytes(rules: Numbers, shelf: int) -> int:
    """The handle size by which an expandable segment of this shelf is mapped: ``segment_size_``."""
    return SMALL_SEGMENT_BYTES if is_small_shelf(rules, shelf) else rules[at.LARGE_SEGMENT]
