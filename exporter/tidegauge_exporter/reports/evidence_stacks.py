"""Stacks as the report's page gets them: every text, frame and stack once, in numbers, and no more than it can show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidegauge.core.evidence.owners import CodeLine, asking_line, is_library
from tidegauge_exporter.messages.text import tidy

MAX_STACKS: Final = 5000
"""Different ones on a page; blocks and events of further ones are shown without a stack."""
MAX_FRAMES: Final = 60
"""Of one stack, from its innermost on."""
MAX_TEXT_CHARS: Final = 300
"""Characters of a name of a function or a file. Paths lose their beginning: their end says which file it is."""

NO_STACK: Final = -1


class StackNumbers:
    """Gives stacks their numbers. What a job called its files and functions is made short and visible here."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._frames: dict[CodeLine, int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._asking: list[int] = []
        """The frame of each stack that is the user's own, or -1."""
        self._table: list[tuple[int, int, int, int]] = []
        """Name, file, line, and whether it is a library's, of each frame."""

    def number(self, stack: Sequence[CodeLine]) -> int:
        """Of ``stack``, innermost first; ``NO_STACK`` where there is none, or no room for another."""
        shown = [_short(line) for line in stack[:MAX_FRAMES]]
        frames = tuple(self._frame(line) for line in shown)
        if not frames:
            return NO_STACK
        known = self._stacks.get(frames)
        if known is not None:
            return known
        if len(self._stacks) >= MAX_STACKS:
            return NO_STACK
        asking = asking_line(shown)
        self._asking.append(NO_STACK if asking is None else self._frame(asking))
        self._stacks[frames] = len(self._stacks)
        return self._stacks[frames]

    def table(self) -> dict[str, Any]:
        """All that was numbered, for the page."""
        return {
            "texts": list(self._texts),
            "frames": self._table,
            "stacks": list(self._stacks),
            "asking": self._asking,
        }

    def _frame(self, line: CodeLine) -> int:
        known = self._frames.get(line)
        if known is None:
            known = self._frames[line] = len(self._table)
            library = int(is_library(line.filename))
            self._table.append((self._text(line.function), self._text(line.filename), line.line, library))
        return known

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))


def _short(line: CodeLine) -> CodeLine:
    """Fit to be shown."""
    return CodeLine(
        _visible(line.filename[-MAX_TEXT_CHARS:]), max(line.line, 0), _visible(line.function[:MAX_TEXT_CHARS])
    )


def _visible(text: str) -> str:
    """Nearly all texts are fit as they are, and there may be a hundred thousand."""
    return text if text.isprintable() else tidy(text, MAX_TEXT_CHARS)
