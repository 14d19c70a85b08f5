"""Memory over time in a terminal: rows of blocks, what is allocated solid, what is only reserved shaded. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.allocator.results import MemoryCurve
from tidegauge.core.units import format_bytes

ROWS = 6
BLOCKS, ASCII = ("█", "░"), ("#", ".")
"""Allocated, and reserved beyond it."""


def memory_chart(curve: MemoryCurve, *, columns: int, highest_bytes: int, marks: tuple[str, str] = BLOCKS) -> list[str]:
    """``ROWS`` lines of at most ``columns`` characters, from ``highest_bytes`` at the top to 0."""
    scale = [format_bytes(highest_bytes), *[""] * (ROWS - 2), "0"]
    margin = max(map(len, scale))
    allocated = _columns(curve.allocated_bytes, columns - margin - 1)
    reserved = _columns(curve.reserved_bytes, columns - margin - 1)
    lines = []
    for row in range(ROWS):
        level = highest_bytes * (ROWS - row - 0.5) / ROWS
        cells = [
            marks[0] if solid >= level else marks[1] if shaded >= level else " "
            for solid, shaded in zip(allocated, reserved)
        ]
        lines.append(f"{scale[row]:>{margin}} {''.join(cells)}".rstrip())
    return lines


def _columns(values: Sequence[int], count: int) -> list[int]:
    """The highest of each of at most ``count`` stretches."""
    count = max(min(count, len(values)), 1)
    bounds = [len(values) * place // count for place in range(count + 1)]
    return [max(values[low:high], default=0) for low, high in zip(bounds, bounds[1:])]
