"""Refusals by reason: counted for everybody, and logged at a bounded rate."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from tidegauge.rate_limited_log import FewLines


class SkipCounts:
    """Counts refusals by reason and logs each, as ``FewLines`` does."""

    def __init__(self, logger: logging.Logger) -> None:
        self._lines = FewLines(logger)
        self._counts: Counter[str] = Counter()

    def add(self, reason: str, what: str, why: str, *, now_s: float) -> None:
        """One refusal of ``what``. ``now_s`` is any clock in seconds."""
        self._counts[reason] += 1
        self._lines.say(logging.WARNING, "skipped %s: %s (reason %r)", what, why, reason, now_s=now_s)

    def snapshot(self) -> Mapping[str, int]:
        return dict(self._counts)
