"""Health of an agent's sources: whether each last call succeeded, and how long it took."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tidegauge.agent.ports import Clock, GpuUnavailableError

_log = logging.getLogger(__name__)


class SourceHealths:
    """Health by source name. One thread measures, others may read."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.success: dict[str, bool] = {}
        self.duration_s: dict[str, float] = {}

    @contextmanager
    def measured(self, source: str) -> Iterator[None]:
        """Note how long a source took and whether it worked; a failure is said when it begins, and ends here."""
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
