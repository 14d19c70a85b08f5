"""A rank's memory over its life in a bounded number of points, for sparklines and forecast plots."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, Optional, Union, overload

from tidegauge.core.units import format_bytes, format_bytes_apart

BUCKETS = 120
"""Points at most: a forecast plot a column every few pixels wide, a terminal's width of sparkline."""
FIRST_WIDTH_S = 1.0
"""Width of a bucket at first, the period of the agents' reports. 120 buckets of 2**n s: a week is 2.3 h a point."""
CLOCK_STEP_S = 60.0
"""A point this much older than the last one is taken for a clock that was set back; less is the same moment again."""

_FIGURES = 5
"""Numbers of a bucket: seconds since the beginning, step, allocated, reserved, nontorch (NaN: unknown)."""


class MemoryPoint(NamedTuple):
    """A stretch of time in the life of one rank: the highest figures in it and its end time."""

    at_unix_s: float
    step: int
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: Optional[int]

    @property
    def used_bytes(self) -> int:
        """The GPU memory that the rank holds, as far as known."""
        return self.reserved_bytes + (self.nontorch_bytes or 0)


class PackedPoints(Sequence[MemoryPoint]):
    """Memory points packed for long storage: 4.8 KiB for 120, where tuples take 26. As exact as ``MemoryHistory``."""

    __slots__ = ("_figures",)

    def __init__(self, points: Iterable[MemoryPoint]) -> None:
        self._figures = array("d")
        for at_unix_s, step, allocated, reserved, nontorch in points:
            self._figures.extend((at_unix_s, step, allocated, reserved, math.nan if nontorch is None else nontorch))

    def __len__(self) -> int:
        return len(self._figures) // _FIGURES

    @overload
    def __getitem__(self, place: int) -> MemoryPoint: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[MemoryPoint, ...]: ...

    def __getitem__(self, place: Union[int, slice]) -> Union[MemoryPoint, tuple[MemoryPoint, ...]]:
        if isinstance(place, slice):
            return tuple(self[at] for at in range(*place.indices(len(self))))
        at = range(len(self))[place] * _FIGURES
        return _point(*self._figures[at : at + _FIGURES])

    def __iter__(self) -> Iterator[MemoryPoint]:
        columns = (self._figures[place::_FIGURES] for place in range(_FIGURES))
        return (_point(*figures) for figures in zip(*columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)


def joined(before: Sequence[MemoryPoint], after: Sequence[MemoryPoint]) -> tuple[MemoryPoint, ...]:
    """One curve of two, in ``BUCKETS`` points or fewer: of ``after`` what is later than ``before``.

    Points are put together by stretches of absolute time, so that a curve that is joined again and again, with a little
    more each time, stays as fine as its length allows.
    """
    if after:  # what is later than the present was told by a clock that has been set back
        before = [point for point in before if point.at_unix_s <= after[-1].at_unix_s]
    points = [*before, *(point for point in after if not before or point.at_unix_s > before[-1].at_unix_s)]
    if len(points) <= BUCKETS:
        return tuple(points)
    width_s = FIRST_WIDTH_S
    while len({point.at_unix_s // width_s for point in points}) > BUCKETS:
        width_s *= 2.0
    stretches = groupby(points, key=lambda point: point.at_unix_s // width_s)
    return tuple(_highest(list(stretch)) for _, stretch in stretches)


def _highest(points: Sequence[MemoryPoint]) -> MemoryPoint:
    if len(points) == 1:
        return points[0]
    times, steps, allocated, reserved, nontorch = zip(*points)
    known = [count for count in nontorch if count is not None]
    return MemoryPoint(times[-1], steps[-1], max(allocated), max(reserved), max(known, default=None))


def highest_of_stretches(amounts: Iterable[tuple[float, float]], columns: int, *, span_s: float) -> list[float]:
    """The highest of ``amounts`` in each of ``columns`` equal stretches of ``span_s``; each has its time since the
    beginning, in order. A stretch without one is as the one before."""
    per_second = columns / span_s
    highest: list[float] = []
    for at_s, amount in amounts:
        missing = int(at_s * per_second) + 1 - len(highest)
        if missing > 0 and len(highest) < columns:
            missing = min(missing, columns - len(highest))
            highest += [*highest[-1:] * (missing - 1), amount]
        elif amount > highest[-1]:
            highest[-1] = amount
    return highest


FLAT_SHARE = 0.001
"""A range that is a smaller share of its highest amount is drawn as flat: on a GPU of 80 GiB 82 MiB are noise."""
LOADING_SHARE = 4
"""The first quarter of a life does not set the foot of a scale: a model that loads would hide all growth after it."""
MIN_SETTLED = 8
"""Amounts from which on there is a quarter to leave out."""


class ChartScale(NamedTuple):
    """The range of a chart, in the unit of its amounts; what lies below is drawn at its foot."""

    low: float
    high: float

    @classmethod
    def of(cls, amounts: Sequence[float]) -> ChartScale:
        """From the lowest of ``amounts``, oldest first and at least one, to the highest."""
        settled = amounts[len(amounts) // LOADING_SHARE :] if len(amounts) >= MIN_SETTLED else amounts
        return cls(min(settled), max(amounts))

    @property
    def span(self) -> float:
        """The height of the chart, above 0."""
        return max(self.high - self.low, self.high * FLAT_SHARE) or 1

    def share(self, amount: float) -> float:
        """The height of an amount as a share of the chart's."""
        return min(max((amount - self.low) / self.span, 0.0), 1.0)

    @property
    def range_words(self) -> str:
        """The range of bytes: "79.1–79.5 GiB"."""
        low, high = format_bytes_apart(self.low, self.high)
        unit = f" {high.split()[-1]}"
        return high if low == high else f"{low.removesuffix(unit)}\N{EN DASH}{high}"

    @property
    def growth_word(self) -> str:
        """The span of bytes in few characters: "+374M"."""
        number, unit = format_bytes(self.high - self.low).split()
        return f"+{number if len(number) < 4 else number.partition('.')[0]}{unit[0]}"


class MemoryHistory:
    """The whole life of one rank in ``BUCKETS`` points or fewer, whatever its length.

    Buckets are of equal width; when they are used up, neighbours are joined and the width doubles. What is between
    two points is never lost as long as it is a peak: joining keeps the highest bytes, and the latest step and time.

    One flat array of doubles (exact for whole numbers up to 2**53, 9 PB): 4.7 KiB a rank, where objects take 30.
    """

    __slots__ = ("_began_unix_s", "_figures", "_width_s")

    def __init__(self) -> None:
        self._began_unix_s = 0.0
        self._width_s = FIRST_WIDTH_S
        self._figures = array("d")

    def add(self, point: MemoryPoint) -> None:
        """Take in one reading. One that is not later than the last counts as the same moment."""
        at_unix_s, step, allocated, reserved, nontorch_bytes = point
        nontorch = math.nan if nontorch_bytes is None else nontorch_bytes
        figures = self._figures
        if not figures:
            self._began_unix_s = at_unix_s
            figures.extend((0.0, step, allocated, reserved, nontorch))
            return
        last_s = figures[-_FIGURES]
        offset_s = at_unix_s - self._began_unix_s
        if offset_s < last_s:
            if last_s - offset_s > CLOCK_STEP_S:
                # The clock was wrong before, by what it was set back: without this, nothing were told until it is as
                # late again as it once was.
                self._began_unix_s -= last_s - offset_s
            offset_s = last_s
        while offset_s >= BUCKETS * self._width_s:
            self._coarsen()
            figures = self._figures
        if offset_s // self._width_s == figures[-_FIGURES] // self._width_s:
            _join(figures, offset_s, step, allocated, reserved, nontorch)
        else:
            figures.extend((offset_s, step, allocated, reserved, nontorch))

    def copy(self) -> MemoryHistory:
        """A history of its own that begins as this one."""
        copy = MemoryHistory()
        copy._began_unix_s, copy._width_s, copy._figures = self._began_unix_s, self._width_s, self._figures[:]
        return copy

    def points(self) -> tuple[MemoryPoint, ...]:
        """Oldest first; times and steps as they were last seen, bytes as the highest in the bucket."""
        return tuple(_point(self._began_unix_s + offset_s, *figures) for offset_s, *figures in self._buckets())

    def used_bytes(self, columns: int) -> tuple[int, ...]:
        """The sparkline: the highest ``MemoryPoint.used_bytes`` of each of ``columns`` equal stretches of the history.
        Fewer where there are fewer points. A stretch without a point is as the one before."""
        if not self._figures:
            return ()
        columns = min(columns, len(self._figures) // _FIGURES)
        held = (
            (offset_s, reserved if math.isnan(nontorch) else reserved + nontorch)
            for offset_s, _, _, reserved, nontorch in self._buckets()
        )
        used = highest_of_stretches(held, columns, span_s=self._figures[-_FIGURES] + self._width_s)
        return tuple(map(int, used))

    @property
    def span_unix_s(self) -> tuple[float, float]:
        """Time of the first and of the last reading; without one (0, 0)."""
        last_s = self._figures[-_FIGURES] if self._figures else 0.0
        return self._began_unix_s, self._began_unix_s + last_s

    def used_between(self, from_unix_s: float, until_unix_s: float, columns: int) -> list[Optional[int]]:
        """The highest ``MemoryPoint.used_bytes`` of each of ``columns`` equal stretches of a time that many histories
        share. ``None`` before the first reading and after the last; between them a stretch without one is as the one
        before."""
        highest: list[Optional[int]] = [None] * columns
        per_second = columns / max(until_unix_s - from_unix_s, 1e-9)
        began_s, width_s = self._began_unix_s - from_unix_s, self._width_s
        seen: Optional[int] = None
        latest = -1
        for last_s, _, _, reserved, nontorch in self._buckets():
            used = int(reserved if math.isnan(nontorch) else reserved + nontorch)
            # A bucket tells of its whole width: it may span several of these stretches.
            first = int((began_s + last_s // width_s * width_s) * per_second)
            last = min(int((began_s + last_s) * per_second), columns - 1)
            for column in range(latest + 1, min(first, columns)):
                highest[column] = seen
            for column in range(max(first, 0), last + 1):
                known = highest[column]
                highest[column] = used if known is None else max(known, used)
            seen, latest = used, max(last, latest)
        return highest

    def _buckets(self) -> Iterator[tuple[float, ...]]:
        return zip(*(self._figures[place::_FIGURES] for place in range(_FIGURES)))

    def _coarsen(self) -> None:
        self._width_s *= 2.0
        old, self._figures = self._figures, array("d", self._figures[:_FIGURES])
        joined = self._figures
        for place in range(_FIGURES, len(old), _FIGURES):
            bucket = old[place : place + _FIGURES]
            if bucket[0] // self._width_s == joined[-_FIGURES] // self._width_s:
                _join(joined, *bucket)
            else:
                joined.extend(bucket)


def _point(at_unix_s: float, step: float, allocated: float, reserved: float, nontorch: float) -> MemoryPoint:
    nontorch_bytes = None if math.isnan(nontorch) else int(nontorch)
    return MemoryPoint(at_unix_s, int(step), int(allocated), int(reserved), nontorch_bytes)


def _join(
    figures: array[float], offset_s: float, step: float, allocated: float, reserved: float, nontorch: float
) -> None:
    """Make the last bucket tell of something later too."""
    figures[-5] = offset_s
    figures[-4] = step
    if allocated > figures[-3]:
        figures[-3] = allocated
    if reserved > figures[-2]:
        figures[-2] = reserved
    if nontorch > figures[-1] or math.isnan(figures[-1]):
        figures[-1] = nontorch
