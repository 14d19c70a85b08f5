"""The last memory profile of each of this node's ranks, in short: for their metric, and to know when to ask again.

Saved on disk beside the profiles that wait: a restarted agent neither asks a second time nor loses the metric.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.evidence.kept_rows import KeptRows
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.categories import Category
from tidegauge.core.views import RankView, with_fields

MAX_KEPT = 1024
"""Of one node, more than it has ranks; the oldest go."""
_FILE = "profiled.json"


class ProfiledRank(NamedTuple):
    """A rank that was profiled."""

    process: ProcessId
    peak_bytes: int
    """The rank's highest memory at that time, of which the recorded steps need not have had all."""
    by_category: Mapping[Category, int]
    """At the peak of the recorded steps."""


class ProfiledRanks:
    """Thread-safe. A write error is logged once; what is learnt then is lost on restart."""

    def __init__(self, folder: Path) -> None:
        self._rows = KeptRows(folder / _FILE, ProfiledRank, lost="ranks may be profiled a second time")
        self._lock = threading.Lock()
        self._ranks = {one.process: one for one in self._rows.load()}
        self._seen: set[ProcessId] = set()
        """Processes that were watched since this agent began; others have not been found yet."""

    def learn(self, rank: ProfiledRank) -> None:
        with self._lock:
            self._ranks.pop(rank.process, None)
            self._ranks[rank.process] = rank
            self._rows.save(self._ranks.values())

    def peaks(self) -> Mapping[ProcessId, int]:
        """The highest memory of each rank when it was profiled."""
        with self._lock:
            return {process: one.peak_bytes for process, one in self._ranks.items()}

    def applied(self, views: Sequence[RankView], watched: Set[ProcessId]) -> tuple[RankView, ...]:
        """The ranks with their composition. ``watched``: current processes; those that ended are forgotten."""
        with self._lock:
            if not self._ranks:
                return tuple(views)
            self._seen |= self._ranks.keys() & watched
            gone = {*(self._seen - watched), *list(self._ranks)[:-MAX_KEPT]}
            self._seen -= gone
            for process in gone:
                self._ranks.pop(process, None)
            if gone:
                self._rows.save(self._ranks.values())
            return tuple(
                view if (one := self._ranks.get(view.process)) is None
                else with_fields(view, profile_bytes=one.by_category)
                for view in views
            )  # fmt: skip
