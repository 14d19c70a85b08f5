"""The values of ``TIDEGAUGE_PROFILE`` (design 3.1). Read at interpreter start, so this module imports nothing."""

from __future__ import annotations

PROFILE_VARIABLE = "TIDEGAUGE_PROFILE"

OFF = "off"
DORMANT = "dormant"
STATS = "stats"
AUTO = "auto"
TRACE = "trace"

LEVELS = (OFF, DORMANT, STATS, AUTO, TRACE)
"""From nothing at all to everything."""

WATCHING_LEVELS = (STATS, AUTO, TRACE)
"""Levels at which the allocator's counters are read. ``trace`` records allocation history as well, from the start;
``auto`` lets the service ask for a bounded window of it when it suspects a trend, ``stats`` does not."""


def unknown_level(text: str) -> str:
    """One line about a value that is not a level."""
    return f"{PROFILE_VARIABLE}={text[:40]!r} is not a level ({', '.join(LEVELS)}): this process is not watched"
