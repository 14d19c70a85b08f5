"""Sizes of PyTorch's caching allocator (c10/core/AllocatorConfig.h), by their names there. Nothing else has a copy.

The probe imports this in the training process, the allocator's model is compiled with it.
"""

from __future__ import annotations

MIN_BLOCK_BYTES = 512
"""``kMinBlockSize``: requests are rounded up to a multiple of this."""
MAX_SMALL_BYTES = 1 << 20
"""``kSmallSize``: rounded sizes up to this are served by the small pool; a block of the large pool is split where more
than this would be left over."""
SMALL_SEGMENT_BYTES = 2 << 20
"""``kSmallBuffer``: a segment of the small pool."""
LARGE_SEGMENT_BYTES = 20 << 20
"""``kLargeBuffer``: a segment for requests between ``MAX_SMALL_BYTES`` and ``MIN_OWN_SEGMENT_BYTES``."""
MIN_OWN_SEGMENT_BYTES = 10 << 20
"""``kMinLargeAlloc``: from this size on a request gets a segment of its own size."""
SEGMENT_STEP_BYTES = 2 << 20
"""``kRoundLarge``: such a segment is a multiple of this."""


def segment_bytes(rounded_bytes: int, large_segment_bytes: int = LARGE_SEGMENT_BYTES) -> int:
    """The segment size that the device is asked for, given the block's size: ``get_allocation_size``."""
    if rounded_bytes <= MAX_SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if rounded_bytes < MIN_OWN_SEGMENT_BYTES:
        return large_segment_bytes
    return (rounded_bytes + SEGMENT_STEP_BYTES - 1) // SEGMENT_STEP_BYTES * SEGMENT_STEP_BYTES
