"""A page in a headless Chromium on this machine, opened some times."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from browser import Tab, chromium, open_tab  # noqa: E402

DRAWN = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
"""In ms. The script runs at the end of the body, so that all is drawn by then."""
Seen = TypeVar("Seen")


def opened(html: str, opens: int, look: Callable[[Tab], Seen]) -> list[Seen]:
    """What ``look`` sees of each opening. Raises ``SystemExit`` without Chromium."""
    program = chromium()
    if program is None:
        raise SystemExit("this needs Chromium")
    seen = []
    with tempfile.TemporaryDirectory() as folder, open_tab(program) as tab:
        path = Path(folder) / "page.html"
        path.write_text(html, encoding="utf-8")
        tab.screen(width=1366, height=900)
        for _ in range(opens):
            tab.open(path.as_uri())
            seen.append(look(tab))
    return seen
