"""A name that is no file: files of its folder with a close name, as after a typing error."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

from tidegauge.core.text import one_line

MAX_ENTRIES = 10_000
"""Of a folder that are looked at."""
MAX_FILES = 3
_CUTOFF = 0.75
"""Of ``difflib``: two letters of a short name."""


def close_files(name: str) -> str:
    """The end of a sentence that names them; empty where there are none."""
    folder = Path(name).parent
    with suppress(OSError, ValueError):
        entries = {entry.name: entry for entry in islice(folder.iterdir(), MAX_ENTRIES)}
        asked = Path(name).name
        close = [one for one in sorted(entries) if asked and one.startswith(f"{asked}.")]
        close += [one for one in get_close_matches(asked, entries, cutoff=_CUTOFF) if one not in close]
        files = [str(entries[one]) for one in close if entries[one].is_file()][:MAX_FILES]
        if files:
            return f"; there is {one_line(' and '.join(files))}"
    return ""
