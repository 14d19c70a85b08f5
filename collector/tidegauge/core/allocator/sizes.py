"""What the allocator makes of a size: the block's, the segment's. Allocator notes, 5.1 to 5.3.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from tidegauge.core.allocator.compiled import Numbers, compiled, entry_point
from tidegauge.core.allocator.layout import DIVIDES, DIVISIONS, LARGE_SEGMENT, STREAMS

SMALLEST_BLOCK = 512
"""``kMinBlockSize``."""
LARGEST_SMALL = 1 << 20
"""``kSmallSize``: rounded sizes up to this are served by the small pool."""
SMALL_SEGMENT = 2 << 20
"""``kSmallBuffer``."""
OWN_SEGMENT = 10 << 20
"""``kMinLargeAlloc``: from this size on a request gets a segment of its own size."""
SEGMENT_STEP = 2 << 20
"""``kRoundLarge``."""
LARGEST_BUCKET = 15
"""Of ``roundup_power2_divisions``: 32 GiB and more. The first is for everything below 2 MiB."""


@entry_point
def rounded_size(rules: Numbers, requested: int) -> int:
    """The block's size for a request, in bytes: ``round_size``."""
    if requested < SMALLEST_BLOCK:
        return SMALLEST_BLOCK
    if rules[DIVIDES]:
        power = 9
        while requested >> (power + 1):
            power += 1
        division = rules[DIVISIONS + min(max(power - 20, 0), LARGEST_BUCKET)]
        if division > 1 and requested > SMALLEST_BLOCK * division:
            step = (1 << power) // division
            return (requested + step - 1) // step * step
    return (requested + SMALLEST_BLOCK - 1) // SMALLEST_BLOCK * SMALLEST_BLOCK


@compiled
def segment_bytes(rules: Numbers, rounded: int) -> int:
    """What is asked of the device for a block of this size: ``get_allocation_size``."""
    if rounded <= LARGEST_SMALL:
        return SMALL_SEGMENT
    if rounded < OWN_SEGMENT:
        return rules[LARGE_SEGMENT]
    return (rounded + SEGMENT_STEP - 1) // SEGMENT_STEP * SEGMENT_STEP


@compiled
def shelf_of(rules: Numbers, pool: int, stream_rank: int, is_small: int) -> int:
    """The set of free blocks for a request. In order of shelves ``release_cached_blocks`` goes: large before small."""
    return (pool * 2 + is_small) * rules[STREAMS] + stream_rank


@entry_point
def is_small_shelf(rules: Numbers, shelf: int) -> bool:
    return (shelf // rules[STREAMS]) % 2 == 1


@compiled
def handle_bytes(rules: Numbers, shelf: int) -> int:
    """What an expandable segment of this shelf is mapped in: ``segment_size_``."""
    return SMALL_SEGMENT if is_small_shelf(rules, shelf) else rules[LARGE_SEGMENT]
