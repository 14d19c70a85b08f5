"""Sanitises text from others for a terminal, a log, a label or a file."""

from __future__ import annotations

from typing import Optional

MAX_LINE_CHARS = 500


def one_line(text: str, max_chars: Optional[int] = MAX_LINE_CHARS, *, replacement: str = "?") -> str:
    """The first ``max_chars`` characters of ``text``, or all of it for ``None``, with nothing that a reader would obey.

    What ``str.isprintable`` rejects is replaced: control characters and so escape sequences, line ends, marks that turn
    the direction of writing, lone surrogates, and all spaces but the usual one.
    """
    line = text[:max_chars]
    return line if line.isprintable() else "".join([char if char.isprintable() else replacement for char in line])
