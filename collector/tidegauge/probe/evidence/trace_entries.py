"""How much the level ``trace`` records: ``TIDEGAUGE_TRACE_ENTRIES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

from tidegauge.core.torch_version import torch_at_least
from tidegauge.probe.runtime.history import MOST_ENTRIES
from tidegauge.probe.runtime.rank_snapshot import MOST_EVENTS

ENTRIES_VARIABLE = "TIDEGAUGE_TRACE_ENTRIES"
DEFAULT_ENTRIES = 50_000
"""15 MB with Python stacks; 30 steps of a 12-layer transformer."""
FEWEST_ENTRIES = 100


def trace_entries(environ: Mapping[str, str], torch_version: str) -> int:
    """Events in the ring: as the variable says, else as many as this torch can leave out of a snapshot."""
    asked = _asked(environ)
    if asked is not None:
        return asked
    return DEFAULT_ENTRIES if torch_at_least(torch_version, 2, 11) else MOST_EVENTS


def trace_complaint(environ: Mapping[str, str]) -> Optional[str]:
    """One line about a variable that is set to what is no such number, or ``None``."""
    text = environ.get(ENTRIES_VARIABLE)
    if not text or _asked(environ) is not None:
        return None
    allowed = f"a whole number from {FEWEST_ENTRIES} to {MOST_ENTRIES}"
    return f"{ENTRIES_VARIABLE}={text[:40]!r} is not {allowed}: the default counts"


def _asked(environ: Mapping[str, str]) -> Optional[int]:
    text = environ.get(ENTRIES_VARIABLE, "").strip()
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return int(text) if FEWEST_ENTRIES <= int(text) <= MOST_ENTRIES else None
