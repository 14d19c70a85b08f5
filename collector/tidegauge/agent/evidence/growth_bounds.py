"""Growth bounds from evidence, compared with this node's ranks' readings: growth that ends is not dangerous.

They are saved on disk beside the evidence, because a restarted agent does not take a window a second time.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.evidence.kept_rows import KeptRows
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.growth_bound import BoundState, BoundWatch, GrowthBound, bounded_verdict
from tidegauge.core.ids import ProcessId
from tidegauge.core.peer_bounds import PeerBound, holds_for_peer
from tidegauge.core.verdicts import Signal
from tidegauge.core.views import RankView

MAX_KEPT = 1024
"""Bounds of one node, more than it has ranks; the oldest go."""
_FILE = "bounds.json"


class _Kept(NamedTuple):
    process: ProcessId
    bound: GrowthBound


class GrowthBounds:
    """This node's growth bounds. Thread-safe. A write error is logged once; bounds learnt then are lost on restart."""

    def __init__(self, folder: Path) -> None:
        self._rows = KeptRows(folder / _FILE, _Kept, lost="bounded growth may be reported as dangerous")
        self._lock = threading.Lock()
        self._seen: set[ProcessId] = set()
        """Processes that were watched since this agent began; others have not been found yet."""
        self._borrowed: dict[ProcessId, GrowthBound] = {}
        """Bounds of peers and of earlier runs. Not on disk: the coordinator's next reply brings them again."""
        self._watches = {one.process: BoundWatch(one.bound) for one in self._rows.load()}

    def learn(self, evidence: Evidence) -> None:
        """Take the bound of a rank's newest window, unless that could compare nothing or is still searched for."""
        if evidence.grown_bytes is None or evidence.searching:
            return
        with self._lock:
            known = self._watches.pop(evidence.process, None)
            if evidence.bound is not None:
                self._watches[evidence.process] = BoundWatch(evidence.bound)
            if known is not None or evidence.bound is not None:
                self._save()

    def borrow(self, bounds: Iterable[PeerBound]) -> None:
        """Replace the bounds that evidence on their peers, and earlier runs, give to these ranks."""
        with self._lock:
            self._borrowed = {one.process: one.bound for one in bounds}

    def applied(self, views: Sequence[RankView], watched: Set[ProcessId]) -> tuple[RankView, ...]:
        """The ranks with their bounds. ``watched``: current processes; bounds of ended ones are forgotten."""
        with self._lock:
            if not self._watches and not self._borrowed:
                return tuple(views)
            before = self._states()
            bounded = tuple(self._applied(view) for view in views)
            self._seen |= self._watches.keys() & watched
            gone = [*(self._seen - watched), *list(self._watches)[:-MAX_KEPT]]
            self._seen.difference_update(gone)
            for process in gone:
                self._watches.pop(process, None)
            if gone or self._states() != before:
                self._save()
            return bounded

    def _applied(self, view: RankView) -> RankView:
        watch, bound = self._watches.get(view.process), self._borrowed.get(view.process)
        if watch is not None:
            bound = watch.update(step=view.step, allocated_bytes=view.allocated_bytes, verdict=view.verdict)
        elif bound is None or not _holds(bound, view):
            return view
        return dataclasses.replace(view, bound=bound, verdict=bounded_verdict(view.verdict, bound))

    def _states(self) -> Mapping[ProcessId, BoundState | None]:
        return {process: watch.bound.state for process, watch in self._watches.items()}

    def _save(self) -> None:
        self._rows.save(_Kept(process, watch.bound) for process, watch in self._watches.items())


def _holds(bound: GrowthBound, view: RankView) -> bool:
    """Whether a bound that the coordinator lent still holds for the rank."""
    if bound.is_of_evidence:
        return holds_for_peer(bound, view.verdict)
    # The coordinator judged the growth by the curves of earlier runs; it may be away since.
    is_of_tensors = view.verdict.signal is Signal.ALLOCATED
    return is_of_tensors and view.allocated_bytes <= bound.end_bytes.high + bound.margin_bytes
