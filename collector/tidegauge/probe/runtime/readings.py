"""Converts the allocator's nested statistics to the sixteen numbers of a record. Values in, values out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

Counts = tuple[Optional[int], ...]
"""``Sample.allocated_bytes`` to ``Sample.blocks``, in that order."""

_CURRENT = ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes", "requested_bytes")
_COUNTERS = ("num_alloc_retries", "num_ooms", "num_device_alloc", "num_device_free")


def counts_of(stats: Mapping[str, Any]) -> Counts:
    """The numbers of one device, from ``memory_stats_as_nested_dict()``; ``None`` where this torch has none.

    Raises ``KeyError`` if even ``allocated_bytes`` or ``reserved_bytes`` is missing: then there is nothing to record.
    """
    try:
        allocated = stats["allocated_bytes"]["all"]
        reserved = stats["reserved_bytes"]["all"]
        active = stats["active_bytes"]["all"]
        inactive = stats["inactive_split_bytes"]["all"]
        requested = stats["requested_bytes"]["all"]
        return (
            allocated["current"], reserved["current"], active["current"], inactive["current"], requested["current"],
            allocated["peak"], reserved["peak"], active["peak"], inactive["peak"], requested["peak"],
            stats["num_alloc_retries"], stats["num_ooms"], stats["num_device_alloc"], stats["num_device_free"],
            stats["segment"]["all"]["current"], stats["allocation"]["all"]["current"],
        )  # fmt: skip
    except KeyError:
        return _sparse_counts_of(stats)


def _sparse_counts_of(stats: Mapping[str, Any]) -> Counts:
    """The same for an older torch or another accelerator, which lack some keys."""

    def of(key: str, field: str) -> Optional[int]:
        value = stats.get(key, {}).get("all", {}).get(field)
        return value if isinstance(value, int) else None

    counters = [value if isinstance(value, int) else None for value in map(stats.get, _COUNTERS)]
    counts = (
        *(of(key, "current") for key in _CURRENT),
        *(of(key, "peak") for key in _CURRENT),
        *counters,
        of("segment", "current"),
        of("allocation", "current"),
    )
    if counts[0] is None or counts[1] is None:
        raise KeyError("allocated_bytes and reserved_bytes")
    return counts
