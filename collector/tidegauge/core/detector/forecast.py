"""The pace of growth and the time until it meets the limit, as ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, sqrt
from operator import mul
from sys import maxsize
from typing import NamedTuple, Optional

from tidegauge.core.detector.state_dicts import StateDict, packed, unpacked
from tidegauge.core.verdicts import Band

_BLOCKS = 8
_STUDENT_T = (12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36)
"""Two-sided 95 % quantiles for 1 to 7 degrees of freedom."""
_SPEEDS_UP = 1.2
"""The last third must be faster than the whole by this factor to count as speeding up."""
_POINTS_KEPT = 128
_MODEL_SPREAD = 1.3
"""The band is widened by this factor on both sides: the rate of the future need not be that of the past."""


class Pace(NamedTuple):
    """The rate of growth per unit: `pace_of` gives it per point of the ladder, `per` per step or second."""

    rate: Band
    """Bytes per unit."""
    newest: float
    """Bytes per unit over the last third."""
    acceleration: float
    """Bytes per unit and unit; 0 unless the growth has clearly sped up."""
    points: int

    def per(self, at: Sequence[float]) -> Optional[Pace]:
        """The pace in the unit of `at`, which holds the points' steps or seconds; None when it does not advance.

        Points are equally many samples apart; what a sample takes is averaged over all of them.
        """
        units = (at[-1] - at[0]) / (self.points - 1)
        if units <= 0:
            return None
        rate = Band(*(value / units for value in self.rate))
        return Pace(rate, self.newest / units, self.acceleration / units / units, self.points)

    def slower(self, factor: float) -> Pace:
        """The pace of what is likely such a part of what grows, and at most all of it."""
        rate = Band(self.rate.low * factor, self.rate.likely * factor, self.rate.high)
        return Pace(rate, self.newest, self.acceleration, self.points)

    def faster(self, factor: float) -> Pace:
        """The pace of what likely grows so many times as fast."""
        rate = Band(self.rate.low, self.rate.likely * factor, self.rate.high * factor)
        return Pace(rate, self.newest * factor, self.acceleration * factor, self.points)


def pace_of(level: Sequence[float]) -> Pace:
    """The pace per point of a ladder of at least three evenly spaced points.

    Likely: the least-squares line. Range: the slopes of the last 34, 50, 67 and 100 % (does the rate change?) and the
    spread of block means, whose length carries the correlation of neighbours, widened by `_MODEL_SPREAD`.
    """
    count = len(level)
    middle = (count - 1) / 2
    likely = 12 * sum(map(mul, range(count), level)) - 12 * middle * sum(level)
    likely /= count * (count * count - 1)
    nested = [_slope_of_last(level, share) for share in (0.34, 0.5, 0.67, 1.0)]
    if nested[1] > 1.5 * likely or nested[1] < likely / 1.5:
        likely = (likely + nested[1]) / 2
    half = _block_error(level)
    low = min(*nested, likely, max(likely - half, 0.0)) / _MODEL_SPREAD
    high = max(*nested, likely, likely + half) * _MODEL_SPREAD
    rate = Band(max(low, 0.0), max(likely, 0.0), high)
    # The last third and the whole lie a third of the span apart, middle to middle.
    speeds_up = nested[0] > _SPEEDS_UP * nested[3]
    acceleration = (nested[0] - nested[3]) / (0.33 * (count - 1)) if speeds_up else 0.0
    return Pace(rate, nested[0], acceleration, count)


def _slope_of_last(level: Sequence[float], share: float) -> float:
    back = max(round(share * (len(level) - 1)), 1)
    return (level[-1] - level[-1 - back]) / back


def _block_error(level: Sequence[float]) -> float:
    """Half width of the 95 % interval of the mean slope, from the slopes of up to eight blocks."""
    blocks = min(_BLOCKS, len(level) - 1)
    edges = [round(index * (len(level) - 1) / blocks) for index in range(blocks + 1)]
    slopes = [(level[last] - level[first]) / (last - first) for first, last in zip(edges, edges[1:])]
    mean = sum(slopes) / blocks
    deviation = sqrt(sum((slope - mean) ** 2 for slope in slopes) / (blocks - 1))
    return _STUDENT_T[blocks - 2] * deviation / sqrt(blocks)


def until(head: Band, pace: Pace) -> Band:
    """Units until `head` bytes are eaten: soonest, likely, latest (may be infinite).

    Soonest also reckons with a growth that goes on speeding up as it has.
    """
    rate = pace.rate
    soonest = head.low / rate.high if rate.high > 0 else inf
    if pace.acceleration > 0:
        pull = pace.acceleration * _MODEL_SPREAD
        speed = pace.newest * _MODEL_SPREAD
        soonest = min(soonest, (sqrt(speed * speed + 2 * pull * head.low) - speed) / pull)
    return Band(
        soonest,
        head.likely / rate.likely if rate.likely > 0 else inf,
        head.high / rate.low if rate.low > 0 else inf,
    )


class Course:
    """The history of a figure over the run, kept at ever fewer steps as it gets longer. State of constant size."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: list[tuple[int, int]] = []

    def state_dict(self) -> StateDict:
        return {name: packed([point[at] for point in self._seen]) for at, name in enumerate(("steps", "values"))}

    def load_state_dict(self, state: StateDict) -> None:
        self._seen = list(zip(unpacked(state["steps"]), unpacked(state["values"])))

    def record(self, step: int, value: int) -> None:
        """`value` at the end of `step`."""
        if self._seen and step <= self._seen[-1][0]:
            return
        self._seen.append((step, value))
        if len(self._seen) > _POINTS_KEPT:
            self._seen[: _POINTS_KEPT // 2] = self._seen[: _POINTS_KEPT // 2 : 2]

    def at(self, step: float) -> int:
        """The value at `step`, or at the last one recorded before it; the first, before that; 0 where there is none."""
        return self._point(step)[1] if self._seen else 0

    def _point(self, step: float) -> tuple[int, int]:
        return self._seen[max(bisect_right(self._seen, (step, maxsize)) - 1, 0)]

    def per_step(self, onset_step: int) -> float:
        """Growth per step since `onset_step`: the middle of what parts of that time show."""
        if not self._seen:
            return 0.0
        step, value = self._seen[-1]
        rates = []
        for share in (0.34, 0.5, 0.67, 1.0):
            before, lower = self._point(step - share * (step - onset_step))
            if before >= step:
                return 0.0
            rates.append((value - lower) / (step - before))
        rates.sort()
        return (rates[1] + rates[2]) / 2
