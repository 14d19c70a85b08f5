"""What stays of a job's memory: the peaks of its ranks, and how the memory of the fullest ones went. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.core.job_records.record import RankPeak, fullness, peak_of
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint, PackedPoints, joined
from tidegauge.core.views import JobView, RankSummary

MAX_PEAKS = 1024
"""Ranks of a job whose peaks are kept, the fullest."""
MAX_JOB_CURVES = 4
"""Ranks of a job whose points are kept, the fullest: 2 KB each when packed."""
MAX_INCIDENT_CURVES = 16
"""Ranks of an incident whose points are kept, the ones to look at first."""

HistoryOf = Callable[[str, RankSummary], MemoryHistory]
"""The memory history of a rank on a node (by the engine's id), since the coordinator started; empty once forgotten."""


class RankMemory(NamedTuple):
    """How the memory of one rank went: ``memory_history.BUCKETS`` points at most, the oldest first."""

    rank: int
    points: tuple[MemoryPoint, ...]


class JobMemory(NamedTuple):
    """What stays beside a ``JobRecord``, by its key and start."""

    peaks: tuple[RankPeak, ...] = ()
    """The fullest rank first."""
    curves: tuple[RankMemory, ...] = ()


class _RankThere(NamedTuple):
    """A rank that was seen in the last look at its job."""

    node_id: str
    rank: RankSummary
    peak: RankPeak

    @property
    def standing(self) -> tuple[bool, tuple[float, int]]:
        """Sort key: of two ranks of one number, in two groups of the job, the higher one's curve is kept."""
        return self.rank.alive, fullness(self.peak)


class MemorySoFar:
    """The memory of one job's ranks over its life. It outlives ranks, which are forgotten one by one when they have
    ended, and the coordinator: the next one goes on from what is stored."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[int, str], RankPeak] = {}
        """By rank and host."""
        self._curves: dict[int, PackedPoints] = {}

    def look(self, views: Iterable[JobView]) -> None:
        """Note the figures of the ranks that are there. A program may reset its peaks: the highest figures count."""
        for view in views:
            for place in range(len(view.ranks)):
                self._note(peak_of(view, place))

    def take(self, views: Iterable[JobView], history_of: HistoryOf) -> None:
        """Read the histories of the ranks that are there. Ranks beyond ``MAX_PEAKS`` are forgotten."""
        fullest = _fullest(self._peaks.values())
        there: dict[int, list[_RankThere]] = defaultdict(list)
        for view in views:
            for place, (node_id, rank) in enumerate(zip(view.rank_nodes, view.ranks)):
                there[int(rank.identity.rank)].append(_RankThere(node_id, rank, peak_of(view, place)))
        curves: dict[int, PackedPoints] = {}
        self._peaks.clear()
        for peak in fullest:
            found = {one.peak.hostname: one for one in there.get(peak.rank, ())}
            here = found.get(peak.hostname)
            points = history_of(here.node_id, here.rank).points() if here is not None else ()
            time_s = step_time_s(points)
            if peak.rank not in curves and len(curves) < MAX_JOB_CURVES:
                first = max(found.values(), key=lambda one: one.standing, default=None)
                if first is not None and first is not here:
                    points = history_of(first.node_id, first.rank).points()
                curves[peak.rank] = PackedPoints(joined(self._curves.get(peak.rank, ()), points))
            self._note(peak if time_s is None else peak._replace(step_s=time_s))
        self._curves = curves

    def go_on_from(self, stored: JobMemory) -> None:
        """Take in what an earlier coordinator stored."""
        for peak in stored.peaks:
            seen = self._peaks.get((peak.rank, peak.hostname))
            self._peaks[peak.rank, peak.hostname] = peak if seen is None else highest(peak, seen)
        for rank, points in stored.curves:
            self._curves[rank] = PackedPoints(joined(points, self._curves.get(rank, ())))

    def memory(self) -> JobMemory:
        """What is to be stored."""
        peaks = tuple(_fullest(self._peaks.values()))
        with_curve = [rank for rank in dict.fromkeys(peak.rank for peak in peaks) if rank in self._curves]
        curves = [RankMemory(rank, tuple(self._curves[rank])) for rank in with_curve[:MAX_JOB_CURVES]]
        return JobMemory(peaks, tuple(curves))

    def _note(self, peak: RankPeak) -> None:
        before = self._peaks.get((peak.rank, peak.hostname))
        self._peaks[peak.rank, peak.hostname] = peak if before is None else highest(before, peak)


_LATEST = {"rank", "hostname", "limit_bytes", "inactive_split_bytes", "step_s", "gpu_bytes"}
"""The fields of a peak that are no peaks."""
_HIGHEST = [place for place, name in enumerate(RankPeak._fields) if name not in _LATEST]


def highest(before: RankPeak, seen: RankPeak) -> RankPeak:
    """The figures of one rank at two times: the highest, and of what is no peak the latest that is known."""
    figures: list[Any] = [old if new is None else new for old, new in zip(before, seen)]
    for place in _HIGHEST:
        old: Any = before[place]
        if old is not None and old > figures[place]:
            figures[place] = old
    return RankPeak._make(figures)


def _fullest(peaks: Iterable[RankPeak]) -> list[RankPeak]:
    by_rank = sorted(peaks, key=lambda peak: (peak.rank, peak.hostname))
    return sorted(by_rank, key=fullness, reverse=True)[:MAX_PEAKS]


def step_time_s(points: Sequence[MemoryPoint]) -> Optional[float]:
    """The median time of a step on this curve; ``None`` where no step ended on it."""
    times: list[tuple[float, int]] = []
    began: Optional[MemoryPoint] = None
    for point in points:
        steps = 0 if began is None else point.step - began.step
        if began is not None and steps > 0:
            times.append(((point.at_unix_s - began.at_unix_s) / steps, steps))
        if began is None or steps != 0:
            began = point
    left = sum(steps for _, steps in times) / 2
    for time_s, steps in sorted(times):
        left -= steps
        if left <= 0:
            return time_s
    return None
