"""What was refused, by reason: a counter for everybody and a log that nobody can flood."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

LINES_PER_MINUTE = 20
"""Anybody who may write one bad ring may write a million: enough to see what goes on, not enough to fill a disk."""


class SkipCounts:
    """Counts refusals by reason and says each in the log, at most ``LINES_PER_MINUTE``."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._counts: Counter[str] = Counter()
        self._minute_starts_s = float("-inf")
        self._lines = 0
        self._unsaid = 0

    def add(self, reason: str, what: str, why: str, *, now_s: float) -> None:
        """One refusal of ``what``. ``now_s`` is any clock in seconds."""
        self._counts[reason] += 1
        if not 0 <= now_s - self._minute_starts_s < 60:
            if self._unsaid:
                self._logger.warning("%d more refusals were not logged in the minute before", self._unsaid)
            self._minute_starts_s, self._lines, self._unsaid = now_s, 0, 0
        if self._lines < LINES_PER_MINUTE:
            self._lines += 1
            self._logger.warning("skipped %s: %s (reason %r)", what, why, reason)
        else:
            self._unsaid += 1

    def snapshot(self) -> Mapping[str, int]:
        return dict(self._counts)
