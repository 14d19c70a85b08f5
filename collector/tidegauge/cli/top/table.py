"""A textual table that renders only its visible lines: as fast with ten thousand rows as with ten."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from tidegauge.cli.top.columns import Cell, Column, Fitted, Tone, fit, header, line

T = TypeVar("T")

CURSOR = "\u25b8"
"""The mark of the cursor's row, for terminals without reverse video."""

# Colours of the terminal's palette, readable on light and dark backgrounds. The two that ask for attention set their
# own background.
STYLES = {
    Tone.PLAIN: Style(),
    Tone.STRONG: Style(bold=True),
    Tone.DIM: Style(dim=True),
    Tone.WATER: Style(color="cyan"),
    Tone.GOOD: Style(color="green"),
    Tone.WARNING: Style(color="black", bgcolor="yellow"),
    Tone.ALARM: Style(color="bright_white", bgcolor="red", bold=True),
}


def text_of(cells: Sequence[Cell]) -> Text:
    """A line for a ``Static``; the texts of cells are never markup."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for cell in cells:
        text.append(cell.text, STYLES[cell.tone])
    return text


class RowTable(ScrollView, Generic[T], can_focus=True):
    """Rows of ``T`` below a fixed header; the cursor stays on its row when the order changes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "page(-1)", show=False),
        Binding("pagedown", "page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "open", show=False),
    ]

    class Opened(Message):
        """The message that a row was opened."""

        def __init__(self, row: object) -> None:
            super().__init__()
            self.row = row

    def __init__(
        self, columns: Sequence[Column[T]], key: Callable[[T], Hashable], *, id: str, empty: str  # noqa: A002
    ) -> None:  # fmt: skip
        super().__init__(id=id)
        self._columns = columns
        self._key = key
        self._rows: Sequence[T] = ()
        self._is_filled = False
        self._place = 0
        self._fitted: tuple[Fitted[T], ...] = ()
        self.empty = empty
        """The text that is shown if ``show`` was called without a row."""

    @property
    def current(self) -> T | None:
        """The row of the cursor."""
        return self._rows[self._place] if self._rows else None

    def show(self, rows: Sequence[T]) -> None:
        """Replace the rows."""
        before = self.current
        self._rows = rows
        self._is_filled = True
        if before is not None:
            key = self._key(before)
            found = next((place for place, row in enumerate(rows) if self._key(row) == key), self._place)
            self._place = max(min(found, len(rows) - 1), 0)
        self._measure()
        self._follow()

    def on_resize(self) -> None:
        self._measure()
        self._follow()

    def _measure(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, len(self._rows) + 1)
        self._fitted = fit(self._columns, self.scrollable_content_region.width - 1)
        self.refresh()

    def _follow(self) -> None:
        """Scroll the cursor into view, below the header."""
        self.scroll_to_region(Region(0, self._place, 1, 2), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        if y == 0:
            return _strip([Cell(" " + header(self._fitted), Tone.DIM)], width)
        place = self.scroll_offset.y + y - 1
        if place >= len(self._rows):
            is_empty = self._is_filled and not self._rows
            return _strip([Cell(f" {self.empty}", Tone.DIM)] if y == 1 and is_empty else [], width)
        here = place == self._place and self.has_focus
        cells = [Cell(CURSOR if here else " "), *line(self._fitted, self._rows[place])]
        return _strip(cells, width, over=Style(reverse=True) if here else None)

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        place = self.scroll_offset.y + event.y - 1
        if event.y < 1 or place >= len(self._rows):
            return
        self._place = place
        self.refresh()
        if event.chain > 1:
            self.action_open()

    def action_move(self, rows: int) -> None:
        self._place = max(min(self._place + rows, len(self._rows) - 1), 0)
        self.refresh()
        self._follow()

    def action_page(self, pages: int) -> None:
        self.action_move(pages * max(self.scrollable_content_region.height - 2, 1))

    def action_open(self) -> None:
        if self.current is not None:
            self.post_message(self.Opened(self.current))


def _strip(cells: Sequence[Cell], width: int, *, over: Style | None = None) -> Strip:
    styles = [STYLES[cell.tone] if over is None else Style(bold=STYLES[cell.tone].bold) + over for cell in cells]
    strip = Strip([Segment(cell.text, style) for cell, style in zip(cells, styles)])
    return strip.adjust_cell_length(width, over).crop(0, width)
