"""The state of one node between its agent's reports."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from tidegauge.agent.rings.new_rings import MAX_RANKS
from tidegauge.cluster.coordinator.report_pacing import stale_limit_s
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import ProcessId, RankKey
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint
from tidegauge.core.views import NodeSummary, RankSummary

CLOCK_STEP_S = 60.0
"""A report this much older than the last one is taken for a node whose clock was set back, not for a late retry."""
KNOWN_INCARNATIONS = 8
MAX_RANKS_KEPT = 2 * MAX_RANKS
"""Of one node: all that its agent watches, and as many that ended lately. A process that calls itself another rank in
every report leaves an ended one behind each time."""
MAX_HIDDEN_S = IncidentRules.absent_grace_s
"""How long ranks that nobody can see count as running: as long as an incident waits for a job that nobody hears of."""

RankOfProcess = tuple[RankKey, ProcessId]
"""A rank that was restarted in place is two of them."""


@dataclass
class KnownNode:
    """The state of one node; ``heard_s`` is on the monotonic clock. Use it under the coordinator's lock."""

    node_id: str
    engine: EngineNode | None = None
    summary: NodeSummary | None = None
    heard_s: float | None = None
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=KNOWN_INCARNATIONS))
    gone_s: float | None = None
    was_stale: bool = False
    stale_at_s: float = math.inf
    """From when on its figures are old, unless it reports."""
    told_every_s: tuple[float, float] = (0.0, 0.0)
    """How often its agent was asked to report: the last time, and the time before, for it may have missed a reply."""
    launches: dict[ProcessId, LaunchSummary] = field(default_factory=dict)
    """Every ``tidegauge run`` in the latest report."""
    ended_launches: tuple[LaunchSummary, ...] = ()
    """Those that ended lately, as of the latest report."""
    ranks: dict[RankOfProcess, RankSummary] = field(default_factory=dict)
    ended_s: dict[RankOfProcess, float] = field(default_factory=dict)
    """Since when each rank that has ended was seen to have, the first first."""
    named: frozenset[RankOfProcess] = frozenset()
    """The ranks in the latest report."""
    histories: dict[RankOfProcess, MemoryHistory] = field(default_factory=dict)
    """Of the same ranks as ``ranks``."""
    problem: str | None = None
    """As ``NodeStatus.problem``."""
    opener_silent_s: float | None = None
    """Since when its agent has told that the opener does not answer; ``None``: it does, or there is none."""

    @property
    def hostname(self) -> str:
        if self.summary is not None:
            return self.summary.hostname
        return self.engine.hostname if self.engine is not None else ""

    def launch_of(self, rank: RankSummary) -> LaunchSummary | None:
        """The ``tidegauge run`` that ``rank`` descends from, as of the latest report."""
        return None if rank.launch is None else self.launches.get(rank.launch)

    def take_summary(self, summary: NodeSummary, now_s: float) -> None:
        self.summary, self.heard_s, self.was_stale = summary, now_s, False
        self.launches = {launch.process: launch for launch in reversed(summary.launches)}
        self.ended_launches = tuple(summary.ended_launches)
        if summary.opener_answers is not False:
            self.opener_silent_s = None
        elif self.opener_silent_s is None:
            self.opener_silent_s = now_s

    def may_hide_ranks(self, now_s: float) -> bool:
        """Whether ranks may run that its agent cannot see: it was started while the opener did not answer."""
        return self.opener_silent_s is not None and now_s - self.opener_silent_s < MAX_HIDDEN_S

    def tell_pace(self, every_s: float, *, stale_after_s: float) -> None:
        """Note the report period that its agent, which has just reported, is asked for. Its figures are stale after
        several missed reports, and not before ``stale_after_s``."""
        assert self.heard_s is not None, "it has just reported"
        self.told_every_s = every_s, self.told_every_s[0]
        self.stale_at_s = self.heard_s + stale_limit_s(self.expected_every_s, at_least_s=stale_after_s)

    @property
    def expected_every_s(self) -> float:
        """The longest period in which the next report may come."""
        return max(self.told_every_s)

    @property
    def patience_s(self) -> float:
        """The time without a report after which its figures are stale."""
        return math.inf if self.heard_s is None else self.stale_at_s - self.heard_s

    def is_news(self, summary: NodeSummary) -> bool:
        """Whether the report is neither older than the latest one nor from an agent that was replaced."""
        if summary.incarnation in self.retired:
            return False
        last = self.summary
        if last is None or last.incarnation != summary.incarnation:
            return True
        if last.sent_mono_s is not None and summary.sent_mono_s is not None:
            return summary.sent_mono_s >= last.sent_mono_s
        late_by_s = last.sent_unix_s - summary.sent_unix_s
        return late_by_s <= 0 or late_by_s > CLOCK_STEP_S

    def take_memory(self, key: RankOfProcess, rank: RankSummary, at_unix_s: float) -> None:
        """Add a rank's figures to its history, if it has a new sample."""
        before = self.ranks.get(key)
        if before is None or before.last_sample_unix_s != rank.last_sample_unix_s:
            figures = rank.allocated_bytes, rank.reserved_bytes, rank.nontorch_bytes
            self.histories.setdefault(key, MemoryHistory()).add(MemoryPoint(at_unix_s, rank.step, *figures))

    def crowded_out(self) -> list[RankOfProcess]:
        """Ranks to forget so that at most ``MAX_RANKS_KEPT`` stay: of the tenant with the most ended ranks, those that
        ended first. Ranks that the agent still reports stay: they would come back with its next report."""
        too_many = len(self.ranks) - MAX_RANKS_KEPT
        if too_many <= 0:
            return []
        ended: dict[Tenant, deque[RankOfProcess]] = {}
        for key in self.ended_s:
            if key not in self.named:
                ended.setdefault(self.ranks[key].tenant, deque()).append(key)
        forgotten: list[RankOfProcess] = []
        while len(forgotten) < too_many and any(ended.values()):
            forgotten.append(max(ended.values(), key=len).popleft())
        return forgotten

    def history(self, rank: RankSummary) -> MemoryHistory:
        """The memory history of a rank; an empty one once it is forgotten."""
        found = self.histories.get((rank.identity.key, rank.process))
        return MemoryHistory() if found is None else found
