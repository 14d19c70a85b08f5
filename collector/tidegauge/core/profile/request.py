"""The request for a memory profile from a rank: one request of the command ``profile`` (docs/probe.md)."""

from __future__ import annotations

from typing import Any, Optional

COMMAND, STATUS_COMMAND = "profile", "profile_status"
STEPS = 2
"""Whole steps: the second shows what outlives the first. Of large ones the probe records a single one."""
MAX_S = 300.0
"""The recording ends after so long, however slow the steps are."""
MAX_EVENTS = 40_000
"""Of the allocator's history. A step of a large model has some 10,000, and listing them takes 3 to 4 us each."""
TRIP_S = 90.0
"""After its recording a rank writes; its node reads, replays and sends."""


def profile_request(profile_id: str, reason: str, *, join: bool = False) -> dict[str, Any]:
    """The request. Sent again with the same id it only asks how far the rank is. With ``join`` a recording that is
    under way will do: the answer has its id."""
    request = {
        "command": COMMAND, "id": profile_id, "reason": reason, "steps": STEPS, "most_s": MAX_S,
        "max_events": MAX_EVENTS,
    }  # fmt: skip
    return {**request, "join": True} if join else request


def ranks_of(text: str) -> Optional[tuple[int, ...]]:
    """``0,3`` as ranks in order, each once; ``None`` for anything else."""
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        return None
    return tuple(sorted({int(part) for part in parts}))


def status_request(profile_id: str) -> dict[str, Any]:
    """Asks how far the recording is."""
    return {"command": STATUS_COMMAND, "id": profile_id}
