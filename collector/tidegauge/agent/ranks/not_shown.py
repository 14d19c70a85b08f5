"""Ranks that live and are not shown: each counted once, by reason."""

from __future__ import annotations

import logging
from collections import Counter

from tidegauge.core.ids import ProcessId
from tidegauge.rate_limited_log import FewLines

MOST_REMEMBERED = 4096
"""Processes by reason; beyond that they are forgotten, and counted again."""


class NotShown:
    """Not thread-safe."""

    def __init__(self, lines: FewLines) -> None:
        self.counts: Counter[str] = Counter()
        self._lines = lines
        self._known: dict[str, set[ProcessId]] = {}

    def add(self, reason: str, process: ProcessId, *, now_s: float) -> None:
        known = self._known.setdefault(reason, set())
        if process in known:
            return
        if len(known) >= MOST_REMEMBERED:
            known.clear()
        known.add(process)
        self.counts[reason] += 1
        self._lines.say(logging.WARNING, "pid %d is not shown (%s)", process.pid, reason, now_s=now_s)
