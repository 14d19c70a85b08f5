"""Cells and columns of ``tidegauge top``: what fits into a line, how a line of memory is drawn. Values in, text out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from rich.cells import cell_len, set_cell_size

from tidegauge.core.text import one_line

T = TypeVar("T")

BLOCKS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
"""From nothing to full in eighths: every terminal font of the last decades has them."""
CUT = "\u2026"
LUXURY = 9
"""Rank of columns that are taken only where all the others are as wide as they like."""


class Tone(str, Enum):
    """How much a cell asks for attention. A tone only repeats what the cell's text says: colours may be missing."""

    PLAIN = "plain"
    STRONG = "strong"
    DIM = "dim"
    WATER = "water"
    """Memory as a picture."""
    GOOD = "good"
    WARNING = "warning"
    ALARM = "alarm"


class Cell(NamedTuple):
    """A piece of a line."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table about ``T``."""

    title: str
    cell: Callable[[T, int], Cell]
    """What it says of one row in so many characters; more are cut off."""
    least: int
    """Characters below which it is of no use."""
    most: int = 0
    """Characters above which it gains nothing; 0: ``least`` is enough."""
    rank: int = 0
    """Columns of a higher rank give way first where the line is too short; ``LUXURY`` comes last."""
    right: bool = False
    """Figures stand to the right."""

    @property
    def wanted(self) -> int:
        """Characters that it likes to have."""
        return max(self.least, self.most)


Fitted = tuple[Column[T], int]
"""A column with the width that it has."""


def fit(columns: Sequence[Column[T]], width: int) -> tuple[Fitted[T], ...]:
    """Which of ``columns``, in their order, and how wide, stand in a line of ``width`` characters with one between.

    The lowest rank first, then from left to right; from the first that does not fit on, none is taken. What is left
    makes them wider, one character each in turn.
    """
    taken: list[int] = []
    for place in sorted(range(len(columns)), key=lambda place: columns[place].rank):
        column = columns[place]
        others = sum((columns[each].wanted if column.rank >= LUXURY else columns[each].least) + 1 for each in taken)
        if taken and others + column.least > width:
            break
        taken.append(place)
    widths = {place: columns[place].least for place in sorted(taken)}
    left = width - sum(widths.values()) - len(widths) + 1
    while left > 0:
        growing = [place for place, now in widths.items() if now < columns[place].wanted]
        if not growing:
            break
        for place in growing[:left]:
            widths[place] += 1
        left -= len(growing)
    return tuple((columns[place], now) for place, now in widths.items())


def line(columns: Sequence[Fitted[T]], row: T) -> list[Cell]:
    """A row of the table as pieces that fill the columns' widths, with one character between them."""
    pieces: list[Cell] = []
    for column, width in columns:
        text, tone = column.cell(row, width)
        shown = cut(text, width)
        space = Cell(" " * (width - cell_len(shown)))
        pieces += [Cell(" ")] if pieces else []
        pieces += [space, Cell(shown, tone)] if column.right else [Cell(shown, tone), space]
    return pieces


def header(columns: Sequence[Fitted[T]]) -> str:
    """The titles, as wide as the columns."""
    return " ".join(f"{column.title:{'>' if column.right else '<'}{width}}" for column, width in columns)


def cut(text: str, width: int) -> str:
    """``text`` in ``width`` characters at most, with a mark where the rest is missing. Never a line break or a control
    character: what a job or a host calls itself must not move the cursor."""
    text = one_line(text, None)
    if cell_len(text) <= width:
        return text
    return "" if width < 1 else set_cell_size(text, width - 1).rstrip() + CUT


def sparkline(amounts: Sequence[float], ceiling: float, width: int) -> str:
    """``amounts``, oldest first, as ``width`` characters at most between nothing and ``ceiling``.

    Of more amounts than characters the highest of each stretch is drawn. Something is never drawn as nothing.
    """
    highest = max([ceiling, *amounts])
    if not amounts or highest <= 0 or width < 1:
        return ""
    return "".join(
        BLOCKS[max(1, round(amount / highest * 8)) if amount > 0 else 0] for amount in squeezed(amounts, width)
    )


def bars(amounts: Sequence[float], ceiling: float, height: int) -> list[str]:
    """``amounts`` as bars side by side, in ``height`` lines from the top, between nothing and ``ceiling`` above 0."""
    eighths = [max(round(min(amount / ceiling, 1.0) * height * 8), 1 if amount > 0 else 0) for amount in amounts]
    return ["".join(BLOCKS[min(max(each - low * 8, 0), 8)] for each in eighths) for low in reversed(range(height))]


def squeezed(amounts: Sequence[float], width: int) -> list[float]:
    """The highest of each of ``width`` stretches; the amounts themselves where they are no more."""
    count = len(amounts)
    if count <= width:
        return list(amounts)
    edges = [place * count // width for place in range(width + 1)]
    return [max(amounts[start:end]) for start, end in zip(edges, edges[1:])]
