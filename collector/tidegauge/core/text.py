"""Sanitises text from others for a terminal, a log, a label or a file."""

from __future__ import annotations

from typing import Optional

MAX_LINE_CHARS = 500
MAX_SHARED = 1 << 14
"""Texts that ``shared`` knows at a time."""
_shared: dict[str, str] = {}


def one_line(text: str, max_chars: Optional[int] = MAX_LINE_CHARS, *, replacement: str = "?") -> str:
    """The first ``max_chars`` characters of ``text``, or all of it for ``None``, with nothing that a reader would obey.

    What ``str.isprintable`` rejects is replaced: control characters and so escape sequences, line ends, marks that turn
    the direction of writing, lone surrogates, and all spaces but the usual one.
    """
    line = text[:max_chars]
    return line if line.isprintable() else "".join([char if char.isprintable() else replacement for char in line])


def shared(text: str) -> str:
    """The same object for texts that are equal and follow each other. For any thread.

    Not ``sys.intern``: what Python 3.12 interns stays for as long as the process, and the texts are other people's.
    """
    if len(_shared) >= MAX_SHARED:
        _shared.clear()
    return _shared.setdefault(text, text)
