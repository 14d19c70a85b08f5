"""What the keeper tells the person at the terminal: lines that begin with ``tidegauge:``, each text in one write."""

from __future__ import annotations

import contextlib
import os

from tidegauge.core.text import one_line

PREFIX = "tidegauge: "
_STDERR = 2


def say(text: str) -> None:
    """Print ``text`` to stderr. A terminal that is gone is not told, and nothing is raised."""
    lines = "".join(f"{PREFIX}{one_line(line, len(line))}\n" for line in text.splitlines())
    with contextlib.suppress(OSError):
        # A progress bar leaves the cursor somewhere in its line.
        begin = "\n" if os.isatty(_STDERR) else ""
        rest = (begin + lines).encode(errors="replace")
        while rest:
            rest = rest[os.write(_STDERR, rest) :]
