"""An icicle: what the parts of a whole are made of, row below row, as inline SVG that ``profile/icicle.js`` zooms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final

WIDTH: Final = 1036.0
"""The width of a page's section, so that a text has its size."""
ROW: Final = 24.0
MAX_ROWS: Final = 14
MIN_WIDTH: Final = 0.3
"""A part that is narrower is not drawn."""
LETTER: Final = 6.6
"""Width of a character, on average; what ``profile/icicle.js`` takes as well."""
PADDING: Final = 5.0


@dataclass(frozen=True)
class IciclePart:
    """A part of the whole."""

    name: str
    size: int
    title: str
    """What is said of it where the pointer is."""
    css: str = ""
    parts: Sequence[IciclePart] = field(default=())
    """Largest first; they may be less than the whole."""
    path: str = ""
    """Its whole name, for a search."""


def draw_icicle(whole: IciclePart, *, of: str, description: str) -> str:
    """The drawing; nothing where the whole is empty. ``of`` is the word for one of its named parts."""
    if whole.size <= 0:
        return ""
    cells = list(_cells(whole))
    height = ROW * (1 + max(row for _, row, _, _ in cells))
    body = "\n".join(_cell(*one) for one in cells)
    return (
        f'<svg class="icicle" data-of="{escape(of)}" viewBox="0 0 {WIDTH:g} {height:g}" role="img" '
        f'aria-label="{escape(description)}">\n'
        f"{body}\n</svg>"
    )


def _cells(whole: IciclePart) -> Iterator[tuple[IciclePart, int, float, float]]:
    """Each part with its row, place and width; each before those below it."""
    waiting = [(whole, 0, 0.0)]
    while waiting:
        part, row, x = waiting.pop()
        yield part, row, x, part.size / whole.size * WIDTH
        below = []
        for each in part.parts if row + 1 < MAX_ROWS else ():
            width = each.size / whole.size * WIDTH
            if width >= MIN_WIDTH:
                below.append((each, row + 1, x))
            x += width
        waiting += below[::-1]


def _cell(part: IciclePart, row: int, x: float, width: float) -> str:
    """``data-`` attributes are for the script."""
    return (
        f'<g class="cell {part.css}" data-x="{x:.3f}" data-width="{width:.3f}" data-row="{row}" '
        f'data-bytes="{part.size}" data-name="{escape(part.name)}" data-path="{escape(part.path)}">'
        f'<rect x="{x:.2f}" y="{row * ROW:g}" width="{width:.2f}" height="{ROW - 1:g}"/>'
        f'<text x="{x + PADDING:.2f}" y="{row * ROW + 16:g}">{escape(_label(part.name, width))}</text>'
        f"<title>{escape(part.title)}</title></g>"
    )


def _label(name: str, width: float) -> str:
    """As much of a name as there is room for."""
    letters = int((width - 2 * PADDING) / LETTER)
    return name if len(name) <= letters else f"{name[: letters - 1]}\N{HORIZONTAL ELLIPSIS}" if letters >= 3 else ""
