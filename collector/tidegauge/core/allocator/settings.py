"""The allocator's settings that decide where a block goes. Source-compatible with Python 3.9."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Optional

MIB = 1 << 20
DEFAULT_LARGE_SEGMENT_BYTES = 20 * MIB
DIVISION_BUCKETS = 16
"""``roundup_power2_divisions`` has one for each power of two from 1 MiB to 32 GiB."""


class TieBreak(str, Enum):
    """The order in which equally large free blocks of a stream are used, by torch version (allocator notes, 5.6)."""

    ADDRESS = "address"
    """torch up to 2.11: the lowest address."""
    BLOCK = "block"
    """2.12: the block object that was made first (each split makes one)."""
    SEGMENT = "segment"
    """From 2.13: the segment that was made first, then the lowest address."""


@dataclass(frozen=True)
class AllocatorSettings:
    """Settings of ``PYTORCH_ALLOC_CONF`` that decide placement. Sizes in bytes; ``None``: not limited."""

    max_split_bytes: Optional[int] = None
    """``max_split_size_mb``: larger blocks are never split."""
    max_non_split_rounding_bytes: Optional[int] = None
    """``max_non_split_rounding_mb``; ``None`` means the large segment's size."""
    roundup_power2_divisions: tuple[int, ...] = (0,) * DIVISION_BUCKETS
    garbage_collection_threshold: float = 0.0
    """Share of the cap; without a cap it does nothing."""
    expandable_segments: bool = False
    large_segment_bytes: int = DEFAULT_LARGE_SEGMENT_BYTES
    """``large_segment_size_mb`` (torch 2.11)."""
    memory_fraction: Optional[float] = None
    """``per_process_memory_fraction`` (torch 2.10)."""
    tie_break: TieBreak = TieBreak.SEGMENT
    memory_pools_flush: bool = True
    """From torch 2.13 a request of a ``MemPool``, too, gives back the cache of the default pool before it fails."""
