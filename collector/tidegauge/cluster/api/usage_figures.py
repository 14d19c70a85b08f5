"""What jobs had and needed lately, for scrapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy

SINCE_S = 7 * 86_400.0
KEPT_S = 600.0
"""Whoever scrapes keeps the figures so long: a query of a month of jobs takes a twentieth of a second."""
MAX_ROWS = 50
"""Of each kind, those that left most memory unused: seven series each."""

UsageFigures = Mapping[UsageBy, Sequence[GpuUsage]]


def lately_used(store: Callable[[], LoopStore], *, now_s: float) -> UsageFigures:
    """Sums over runs that ended in the last seven days. Raises ``AuditError``."""
    table = store().usage
    return {by: table.usage(by, since_s=now_s - SINCE_S, limit=MAX_ROWS) for by in UsageBy}
