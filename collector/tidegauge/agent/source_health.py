"""Health of an agent's sources: whether each last call succeeded, how long it took, and refused files by reason."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tidegauge.agent.ports import Clock, GpuUnavailableError
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)


class SourceHealths:
    """Health by source name. One thread measures, others may read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.success: dict[str, bool] = {}
        self.duration_s: dict[str, float] = {}

    @contextmanager
    def measured(self, source: str) -> Iterator[None]:
        """Note how long a source took and whether it worked. Catches a failure, and logs its begin and end."""
        start_ns = self._clock.monotonic_ns()
        try:
            yield
        except Exception as error:
            if self.success.get(source, True):
                expected = isinstance(error, (GpuUnavailableError, OSError))
                _log.warning("%s cannot be read: %s", source, error, exc_info=not expected)
            self.success[source] = False
        else:
            if not self.success.get(source, True):
                _log.info("%s can be read again", source)
            self.success[source] = True
        self.duration_s[source] = (self._clock.monotonic_ns() - start_ns) / 1e9


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
