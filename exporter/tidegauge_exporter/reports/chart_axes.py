"""Where the marks on the axes of a chart stand, and what is written at them. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import NamedTuple

MAX_TICKS = 9
"""On the x axis: more of them would touch."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * _MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28)),
)


class Tick(NamedTuple):
    """A mark on an axis."""

    x: float
    text: str


class Axis(NamedTuple):
    """What runs from left to right."""

    name: str
    ticks: Callable[[float, float], list[Tick]]
    """The marks inside a range, lowest first."""


def byte_ticks(low: float, high: float) -> list[float]:
    """Four to seven ticks around ``low`` .. ``high``, the outer ones included, a power of two bytes apart."""
    size = 2.0 ** math.ceil(math.log2(max((high - low) / 6, 1.0)))
    first = math.floor(low / size)
    last = max(math.ceil(high / size), first + 1)
    return [index * size for index in range(first, last + 1)]


def step_ticks(low: float, high: float) -> list[Tick]:
    """Round steps inside ``low`` .. ``high``."""
    rough = max((high - low) / (MAX_TICKS - 1), 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [Tick(x, f"{x:,.0f}") for x in _multiples(low, high, size)]


def time_ticks(low_unix_s: float, high_unix_s: float) -> list[Tick]:
    """Round times of day inside the range, in UTC; a day's first moment is written as its date."""
    rough_s = (high_unix_s - low_unix_s) / (MAX_TICKS - 1)
    size_s = next((size_s for size_s in _TIME_STEPS_S if size_s >= rough_s), math.ceil(rough_s / _DAY_S) * _DAY_S)
    return [Tick(at_unix_s, _moment(at_unix_s, size_s)) for at_unix_s in _multiples(low_unix_s, high_unix_s, size_s)]


def _multiples(low: float, high: float, size: float) -> list[float]:
    return [index * size for index in range(math.ceil(low / size), math.floor(high / size) + 1)]


def _moment(at_unix_s: float, size_s: float) -> str:
    when = datetime.fromtimestamp(at_unix_s, timezone.utc)
    if at_unix_s % _DAY_S == 0:
        return f"{when:%m-%d}"
    return f"{when:%H:%M:%S}" if size_s < _MINUTE_S else f"{when:%H:%M}"


STEPS = Axis("training step", step_ticks)
TIME = Axis("time, UTC", time_ticks)
