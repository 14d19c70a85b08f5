"""What the coordinator remembers of one node between its agent's reports."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import ProcessId, RankKey
from tidegauge.core.launches import LaunchSummary
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint
from tidegauge.core.views import NodeSummary, RankSummary

CLOCK_STEP_S = 60.0
"""A report this much older than the last one is taken for a node whose clock was set back, not for a late retry."""
KNOWN_INCARNATIONS = 8

RankOfProcess = tuple[RankKey, ProcessId]
"""A rank that was restarted in place is two of them."""


@dataclass
class KnownNode:
    """What is known of one node; ``heard_s`` is on the monotonic clock. For use under the coordinator's lock."""

    node_id: str
    first_seen_s: float
    engine: EngineNode | None = None
    summary: NodeSummary | None = None
    heard_s: float | None = None
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=KNOWN_INCARNATIONS))
    gone_s: float | None = None
    was_stale: bool = False
    ranks: dict[RankOfProcess, RankSummary] = field(default_factory=dict)
    ended_s: dict[RankOfProcess, float] = field(default_factory=dict)
    named: frozenset[RankOfProcess] = frozenset()
    """The ranks in the latest report."""
    histories: dict[RankOfProcess, MemoryHistory] = field(default_factory=dict)
    """Of the same ranks as ``ranks``."""

    @property
    def hostname(self) -> str:
        if self.summary is not None:
            return self.summary.hostname
        return self.engine.hostname if self.engine is not None else ""

    def launch_of(self, rank: RankSummary) -> LaunchSummary | None:
        """The ``tidegauge run`` that ``rank`` descends from, as of the latest report."""
        launches = () if self.summary is None or rank.launch is None else self.summary.launches
        return next((launch for launch in launches if launch.process == rank.launch), None)

    def is_news(self, summary: NodeSummary) -> bool:
        """Not older than the latest report, and not of an agent that was replaced."""
        if summary.incarnation in self.retired:
            return False
        last = self.summary
        if last is None or last.incarnation != summary.incarnation:
            return True
        late_by_s = last.sent_unix_s - summary.sent_unix_s
        return late_by_s <= 0 or late_by_s > CLOCK_STEP_S

    def take_memory(self, key: RankOfProcess, rank: RankSummary, at_unix_s: float) -> None:
        """Add what is told of a rank to its history, unless it is what ``ranks`` holds already: a rank that gives no
        sample any more has no history from then on."""
        before = self.ranks.get(key)
        if before is None or before.last_sample_unix_s != rank.last_sample_unix_s:
            figures = rank.allocated_bytes, rank.reserved_bytes, rank.nontorch_bytes
            self.histories.setdefault(key, MemoryHistory()).add(MemoryPoint(at_unix_s, rank.step, *figures))

    def history(self, rank: RankSummary) -> MemoryHistory:
        """An empty one once the rank is forgotten."""
        found = self.histories.get((rank.identity.key, rank.process))
        return MemoryHistory() if found is None else found
