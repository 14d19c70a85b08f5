"""A thinned history of each rank's readings, for the rise of each figure in evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tidegauge.core.evidence.cause_input import MemoryGrowth
from tidegauge.core.ids import ProcessId
from tidegauge.core.views import GpuView, RankView

MAX_POINTS = 64
"""Points of one rank. When they are used up every second one goes, and later ones are twice as far apart."""
FIRST_APART_S = 5.0


class Reading(NamedTuple):
    """A rank's figures at one moment, in bytes; ``None``: could not be read."""

    step: int
    allocated_bytes: int | None
    reserved_bytes: int | None
    nontorch_bytes: int | None
    inactive_split_bytes: int | None
    host_bytes: int | None
    alloc_retries: int | None
    other_processes_bytes: int | None
    children_bytes: int | None


class RankReadings:
    """Readings of every rank of the node. For one thread."""

    def __init__(self) -> None:
        self._series: dict[ProcessId, _Series] = {}
        self._earlier: dict[ProcessId, _Series] = {}
        """Of an earlier agent, of ranks that have no view yet."""

    def state_dict(self, process: ProcessId) -> dict[str, Any] | None:
        series = self._series.get(process)
        return None if series is None else series.state_dict()

    def load_state_dict(self, process: ProcessId, state: Mapping[str, Any]) -> None:
        """Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no state."""
        self._earlier[process] = _Series()
        self._earlier[process].load_state_dict(state)

    def take(self, views: Sequence[RankView], gpus: Sequence[GpuView], now_s: float) -> None:
        """One round's readings of the ranks that there are; others are forgotten. ``now_s`` is a monotonic clock."""
        others = {gpu.uuid: gpu.other_processes_bytes for gpu in gpus}
        before = self._series
        self._series = {
            view.process: before.get(view.process) or self._earlier.pop(view.process, None) or _Series()
            for view in views
        }
        for view in views:
            if view.alive:
                other_bytes = None if view.uuid is None else others.get(view.uuid)
                self._series[view.process].add(view, other_bytes, now_s)

    def of(self, process: ProcessId) -> tuple[Reading, ...]:
        """A rank's readings, the oldest first and the latest last."""
        series = self._series.get(process)
        return () if series is None else series.readings()


class _Series:
    def __init__(self) -> None:
        self._apart_s = FIRST_APART_S
        self._points: list[tuple[float, Reading]] = []
        self._last: tuple[RankView, int | None] | None = None
        """What the latest reading is made of, for which somebody asks rarely."""

    def state_dict(self) -> dict[str, Any]:
        return {"apart_s": self._apart_s, "points": [[at_s, list(one)] for at_s, one in self._points]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._apart_s = state["apart_s"]
        self._points = [(at_s, Reading(*one)) for at_s, one in state["points"]]

    def add(self, view: RankView, other_bytes: int | None, now_s: float) -> None:
        self._last = view, other_bytes
        if self._points and now_s - self._points[-1][0] < self._apart_s:
            return
        self._points.append((now_s, _reading(view, other_bytes)))
        if len(self._points) > MAX_POINTS:
            self._points = self._points[::2]
            self._apart_s *= 2

    def readings(self) -> tuple[Reading, ...]:
        return (*(reading for _, reading in self._points), *([] if self._last is None else [_reading(*self._last)]))


def growth_since(readings: Sequence[Reading], step: int) -> MemoryGrowth:
    """Each figure's rise since ``step``, or since the first known reading."""
    if not readings:
        return MemoryGrowth()
    begin = next((one for one in reversed(readings) if one.step <= step), readings[0])
    # Field by field in the order of MemoryGrowth: a Reading has the same ones behind its step.
    return MemoryGrowth(*(_rise(old, new) for old, new in zip(begin[1:], readings[-1][1:], strict=True)))


def _rise(old: int | None, new: int | None) -> int | None:
    return None if old is None or new is None else new - old


def _reading(view: RankView, other_bytes: int | None) -> Reading:
    return Reading(
        step=view.step,
        allocated_bytes=view.allocated_bytes,
        reserved_bytes=view.reserved_bytes,
        nontorch_bytes=view.nontorch_bytes,
        inactive_split_bytes=view.inactive_split_bytes,
        host_bytes=view.host_rss_bytes,
        alloc_retries=view.alloc_retries,
        other_processes_bytes=other_bytes,
        children_bytes=view.children_bytes,
    )
