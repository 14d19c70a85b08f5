"""Sets how often agents report: as their settings say on a small cluster, less often on a large one.

A call of the coordinator costs about half a millisecond, nearly all in Ray and whatever the size, so the number of
calls is bounded. Agents report at once, whatever their pace, when something happens that the coordinator acts on
(``agent.runner``); the pace is for figures that only move.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tidegauge.core.verdicts import LeakState
from tidegauge.core.views import JobView

MAX_REPORTS_PER_S = 160.0
"""Of quiet nodes in all: up to 160 nodes report every second, 1,250 every 7.8 s, 4,800 and more every 30 s."""
MAX_QUICK_NODES = 50
"""Nodes that report as often as their setting says because of what their jobs do."""
MAX_NODES_PER_JOB = 10
"""So that one large job does not make all others wait."""
MAX_PACE_S = 30.0
"""Half of ``agent_reconciler.WEDGED_S``. From 4,800 nodes on, which reach it, reports exceed ``MAX_REPORTS_PER_S``."""
SOON_S = 600.0
"""A job that may be out of memory within this is quick: what is done about it should not wait for a report."""
MISSED_REPORTS = 3.0
"""An agent that was asked to report less often is stale when it has missed so many."""


def stale_limit_s(expected_every_s: float, *, at_least_s: float) -> float:
    """The time without a report after which a node's figures are stale."""
    return max(at_least_s, MISSED_REPORTS * expected_every_s)


class ReportPacing:
    """The report period of each node. Use it under the coordinator's lock."""

    def __init__(self) -> None:
        self._quick: frozenset[str] = frozenset()

    def look_at(self, jobs: Iterable[JobView]) -> None:
        """Take the present jobs, the most alarming first."""
        quick: dict[str, None] = {}
        for job in jobs:
            if job.state is LeakState.OK or len(quick) >= MAX_QUICK_NODES:
                break
            if job.running and _soonest_s(job) <= SOON_S:
                quick.update(dict.fromkeys(_worst_nodes(job)))
        self._quick = frozenset(list(quick)[:MAX_QUICK_NODES])

    def every_s(self, node_id: str, *, nodes: int) -> float:
        """The period for the reply to a node's report; 0: that of its setting."""
        if nodes <= MAX_REPORTS_PER_S or node_id in self._quick:
            return 0.0
        return min(nodes / MAX_REPORTS_PER_S, MAX_PACE_S)


def _worst_nodes(job: JobView) -> list[str]:
    """The nodes of its suspects, the worst first, then its other nodes; not all of a large job."""
    node_of = {int(rank.identity.rank): node for rank, node in zip(job.ranks, job.rank_nodes)}
    suspects = [node_of[number] for number in job.suspects if number in node_of]
    return list(dict.fromkeys([*suspects, *job.rank_nodes]))[:MAX_NODES_PER_JOB]


def _soonest_s(job: JobView) -> float:
    """The seconds until the first of its ranks may run out of memory."""
    bands = [rank.verdict.seconds_to_oom for rank in job.ranks if rank.alive]
    return min((band.low for band in bands if band is not None), default=math.inf)
