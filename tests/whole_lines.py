"""Lines of a file that another process is writing."""

from __future__ import annotations

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """All but one that is being written: a reader may see a write as far as the end of a page of memory. None where
    there is no file yet."""
    text = path.read_text() if path.exists() else ""
    return text[: text.rfind("\n") + 1].splitlines()
