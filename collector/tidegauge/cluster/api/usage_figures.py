"""What jobs had and needed lately, for scrapes: read from the database at most every ten minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy

SINCE_S = 7 * 86_400.0
KEPT_S = 600.0
MAX_ROWS = 50
"""Of each kind, those that left most memory unused: seven series each."""

UsageFigures = Mapping[UsageBy, Sequence[GpuUsage]]


class LatelyUsed:
    """Callable from any thread. Without a database it gives what was known last."""

    def __init__(
        self, store: Callable[[], LoopStore], *, now_s: Callable[[], float], monotonic_s: Callable[[], float]
    ) -> None:
        self._store = store
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._until_s = float("-inf")
        self._known: UsageFigures = {}

    def __call__(self) -> UsageFigures:
        with self._lock:
            if self._monotonic_s() >= self._until_s:
                try:
                    table, since_s = self._store().usage, self._now_s() - SINCE_S
                    self._known = {by: table.usage(by, since_s=since_s, limit=MAX_ROWS) for by in UsageBy}
                    self._until_s = self._monotonic_s() + KEPT_S
                except AuditError:
                    pass
            return self._known
