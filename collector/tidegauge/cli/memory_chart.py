"""A chart of memory over time in characters, for a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from tidegauge.cli.output import squeezed
from tidegauge.core.units import format_bytes

ROWS = 6
BLOCKS, ASCII = ("█", "░"), ("#", ".")
"""Characters for allocated memory, and for reserved memory beyond it."""
WIDEST_CHART = 100


def memory_chart(
    allocated_bytes: Sequence[int], reserved_bytes: Sequence[int], *, columns: int, highest_bytes: int,
    marks: tuple[str, str] = BLOCKS,
) -> list[str]:  # fmt: skip
    """Memory over time as ``ROWS`` lines of at most ``columns`` characters, from ``highest_bytes`` at the top to 0."""
    scale = [format_bytes(highest_bytes), *[""] * (ROWS - 2), "0"]
    margin = max(map(len, scale))
    width = max(columns - margin - 1, 1)
    allocated, reserved = squeezed(allocated_bytes, width), squeezed(reserved_bytes, width)
    lines = []
    for row in range(ROWS):
        level = highest_bytes * (ROWS - row - 0.5) / ROWS
        cells = [
            marks[0] if solid >= level else marks[1] if shaded >= level else " "
            for solid, shaded in zip(allocated, reserved)
        ]
        lines.append(f"{scale[row]:>{margin}} {''.join(cells)}".rstrip())
    return lines


def print_chart(
    title: str, allocated_bytes: Sequence[int], reserved_bytes: Sequence[int], *, highest_bytes: int
) -> None:
    """Print the chart below its title and legend, as wide as the terminal and its characters allow."""
    columns = min(shutil.get_terminal_size().columns - 1, WIDEST_CHART)
    marks = BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else ASCII
    lines = memory_chart(allocated_bytes, reserved_bytes, columns=columns, highest_bytes=highest_bytes, marks=marks)
    print(f"\n{title}: {marks[0]} allocated, {marks[1]} reserved beyond it")
    print("\n".join(lines))
