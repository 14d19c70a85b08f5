"""Detects growth in a row of floors, and the end of growth. Pure functions over one scale.

The *ladder* is the suffix minimum of the floors: at each moment, the level to which memory never came back since. It
never falls, so a growth is described by the times at which it crosses evenly spaced levels (a bisection each): rises,
pauses, running ahead of a straight line, lagging behind one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from itertools import accumulate
from math import inf, sqrt
from operator import eq, sub
from typing import NamedTuple, Optional, Union

from tidegauge.core.detector.params import Params


class Growth(NamedTuple):
    """Growth that was going on at the last floor of a scale. Indices are into that scale's floors."""

    start: int
    """Last floor at the old level."""
    end: int
    """Newest floor whose level is confirmed by those after it."""
    gained: float
    """Bytes from `start` to `end`."""
    quiet: int
    """Floors before `start` that were at its level: how long memory had been flat."""
    rises: int
    """Distinct rises seen, at most `Params.levels`."""
    regular: bool
    """Few, separate rises with pauses that are alike: a staircase."""
    pause_limit: float
    """Floors without growth after which it counts as ended."""
    reversal_ratio: float
    """`gained` over the usual reversal; infinite when memory never fell back."""
    ladder: list[float]
    """The ladder from floor 0 to `end`."""


class Ended(NamedTuple):
    """There was growth, and it has stopped or is levelling off."""

    gained: float
    doubtful: bool
    """It is only slower than it was, and noise may make it look so."""


def ladder_of(mins: Sequence[float], end: int) -> list[float]:
    """Suffix minima of all `mins`, for floors 0 to `end`."""
    backwards = list(accumulate(reversed(mins), min))
    backwards.reverse()
    return backwards[: end + 1]


def look(mins: Sequence[float], least_bytes: float, params: Params) -> Optional[Union[Growth, Ended]]:
    """Find growth in the floors of one scale. None: no growth, or none that has the shape of a leak.

    Starts are tried from the oldest on, so that the longest growth that fits is the one reported.
    """
    count = len(mins)
    if count < params.floors_min:
        return None
    end = count - max(2, round(count * params.confirm_share))
    top = min(mins[end:])
    if top - min(mins[:end]) < least_bytes:
        return None
    ladder = ladder_of(mins, end)
    usual_fall = usual_reversal(mins, ladder, params)
    ended: Optional[Ended] = None
    for start in _starts(ladder, end - params.floors_min + 3, max(1, count // params.starts)):
        gained = top - ladder[start]
        if gained < least_bytes or gained < params.reversal_ratio_suspect * usual_fall:
            break
        found = _shape(ladder, start, usual_fall, params)
        if isinstance(found, Growth):
            return found
        ended = ended or found
    return ended


def net(mins: Sequence[float], head: float, params: Params) -> Optional[Growth]:
    """Growth that has eaten most of the head-room, of whatever shape: it rose again and again, and lately, too.

    What few or uneven rises cannot show before they end the job. `head`: bytes left to the limit.
    """
    count = len(mins)
    if count < params.net_floors_min:
        return None
    lowest = min(mins)
    gained = mins[-1] - lowest
    if gained < params.net_share_next * (gained + head):
        return None
    ladder = ladder_of(mins, count - 1)
    # Of a short growth at the end of a long past, a few floors confirm the level.
    start = bisect_right(ladder, lowest + params.quiet_share * gained) - 1
    end = count - max(1, round((count - start) * params.confirm_share))
    ladder = ladder[: end + 1]
    gained = ladder[end] - lowest
    if gained < params.net_share_next * (gained + head):
        return None
    start = bisect_right(ladder, lowest + params.quiet_share * gained) - 1
    if end - start < params.net_floors_min - 1:
        return None
    rises = list(map(sub, ladder[start + 1 :], ladder[start:]))
    largest = max(rises)
    at = [index for index, rise in enumerate(rises) if rise > gained / max(100, 2 * len(rises))]
    if len(at) < params.net_rises_even:
        return None
    if gained < params.net_share * (gained + head) and _next_rise(rises, at) < head:
        return None
    pauses = _pauses(at)
    even = len(at) == params.net_rises_even and max(pauses) <= params.net_even * min(pauses)
    if largest > params.net_jump_max * gained or (len(at) < params.net_rises_min and not even):
        return None
    if len(rises) - 1 - at[-1] > 2 * max(pauses) + 1:
        return None
    past = sorted(mins[:start])
    before = past[(9 * (start - 1)) // 10] if start else -inf
    if before > mins[start] + (1 - params.net_new_min) * gained:
        return None
    if before <= mins[start] + params.net_fresh_max * gained:
        mins = mins[start:]  # never so high before: what it did in its flat past says nothing of the rise
        count = len(mins)
    concordant = _concordant(mins)
    pairs = count * (count - 1) / 2
    if count < params.net_z_floors:
        if concordant < params.net_tau_min * pairs:
            return None
    elif concordant < params.net_z_min * sqrt(pairs * (2 * count + 5) / 9):
        return None
    return Growth(start, end, gained, start, len(rises), False, 2.0 * max(pauses), inf, ladder)


def _next_rise(rises: Sequence[float], at: Sequence[int]) -> float:
    """The likely size of the next rise: the largest so far, and more where each is larger than the one before it."""
    newest, before = rises[at[-1]], rises[at[-2]]
    largest = max(rises)
    return largest * min(newest / before, 2.0) if newest == largest > before else largest


def _concordant(values: Sequence[float]) -> int:
    """Pairs of which the later one is larger, less those of which it is smaller."""
    seen: list[float] = []
    total = 0
    for count, value in enumerate(values):
        below = bisect_left(seen, value)
        total += below - (count - bisect_right(seen, value, below))
        seen.insert(below, value)
    return total


def _pauses(at: Sequence[int]) -> list[int]:
    return [after - before for before, after in zip(at, at[1:])]


def _starts(ladder: list[float], before: int, stride: int) -> list[int]:
    """Floors at which growth may have begun: evenly spaced ones, and the one after the largest single rise."""
    starts = list(range(0, before, stride))
    rises = list(map(sub, ladder[1:], ladder))
    after = rises.index(max(rises)) + 1
    if 0 < after < before:
        insort(starts, after)
    return starts


def floors_above(mins: Sequence[float], level: float) -> int:
    """Floors since memory came to stay at or above `level`; all of them when it never was below."""
    for back, value in enumerate(reversed(mins)):
        if value < level:
            return back
    return len(mins)


def _shape(ladder: list[float], start: int, usual_fall: float, params: Params) -> Optional[Union[Growth, Ended]]:
    """The growth from `start` on, if it looks like one that goes on. Moves the start to the onset."""
    end = len(ladder) - 1
    for _ in range(4):
        base = ladder[start]
        gained = ladder[end] - base
        times = _crossings(ladder, start, gained, params.levels)
        onset = times[0] - 1
        if onset > start:
            start = onset
        span = end - start
        if span < params.floors_min - 3 or gained <= 0:
            return None
        step = 1.0 / params.levels
        # Built-ins over lists rather than generator expressions: this is half of the cost of a look.
        ahead = list(map(sub, [index * span * step for index in range(params.levels)], times))
        farthest = min(ahead)
        knee = times[params.levels - 1 - ahead[::-1].index(farthest)] - 1
        lag = (-farthest - 1 - start) / span
        if lag <= params.lag_max:
            # Where memory falls back a lot, pauses are made by the falls.
            knee = _after_early_pause(times, params) if gained > params.bend_reversals * usual_fall else -1
        if knee <= start:
            break
        start = knee
    else:
        return None
    pauses = [after - before for before, after in zip(times, times[1:]) if after > before]
    rises = len(pauses) + 1
    if rises < params.rises_min or _jumps(times, int(params.jump_max * params.levels)):
        return None
    longest = max(pauses)
    regular = rises <= params.levels // 2 and longest <= 1.25 * min(pauses) + 1
    if not regular and rises < params.rises_min_irregular:
        return None
    pause_limit = (params.pause_factor_regular if regular else params.pause_factor) * longest
    if end - times[-1] > pause_limit + 2:
        return Ended(gained, doubtful=False)
    # The newest floors are noisy too: growth that goes on is a usual reversal above where it was a while ago.
    above_noise = bisect_left(ladder, ladder[end] - usual_fall, start)
    if end - above_noise > pause_limit + 2 + 1.5 * span * usual_fall / gained:
        return Ended(gained, doubtful=False)
    excess = step + (max(ahead) + start) / span
    third = ladder[end] - ladder[start + (2 * span) // 3]
    few = 1.0 / rises
    slows = 3.0 * third < (params.last_third_min - params.last_third_few * few) * gained
    if slows or excess > params.excess_max + params.excess_few * few:
        noisy = gained < params.bend_reversals * usual_fall
        return Ended(gained, doubtful=noisy and rises >= params.rises_min_irregular)
    slope = gained / span
    start = _extended(ladder, start, slope, (1.5 + max(longest - span * step, 0)) * slope + usual_fall)
    gained = ladder[end] - ladder[start]
    flat = max(params.quiet_share * gained, params.quiet_reversals * usual_fall)
    quiet = start - bisect_left(ladder, ladder[start] - flat)
    ratio = gained / usual_fall if usual_fall > 0 else inf
    return Growth(start, end, gained, quiet, rises, regular, pause_limit, ratio, ladder)


def _after_early_pause(times: list[int], params: Params) -> int:
    """The floor before growth goes on after one outstanding pause in its first half; -1 when there is none.

    What came before it was something else: a context, a workspace, an earlier growth.
    """
    pauses = [after - before for before, after in zip(times, times[1:])]
    early = pauses[: len(pauses) // 2]
    longest = max(early)
    if longest < params.bend_floors:
        return -1
    distinct = sorted(filter(None, pauses))
    if longest < params.bend_ratio * distinct[len(distinct) // 2]:
        return -1
    return times[early.index(longest) + 1] - 1


def _extended(ladder: list[float], start: int, slope: float, tolerance: float) -> int:
    """An earlier start, if the floors before lie on the same line: starts are tried at a coarse stride only."""
    first = start
    while first > 0 and abs(ladder[start] - slope * (start - first + 1) - ladder[first - 1]) <= tolerance:
        first -= 1
    # Coming out of a flat stretch the walk overshoots by the tolerance: then the start was right.
    return first if ladder[start] - ladder[first] > 2 * tolerance else start


def _crossings(ladder: list[float], start: int, gained: float, levels: int) -> list[int]:
    """First floor at or above each of `levels` levels, half a level away from both ends of the growth."""
    quantum = gained / levels
    lowest = ladder[start] + 0.5 * quantum
    return [bisect_left(ladder, lowest + index * quantum, start) for index in range(levels)]


def _jumps(times: Sequence[int], levels: int) -> bool:
    """More than `levels` levels are crossed at one floor."""
    return any(map(eq, times, times[levels:]))


def usual_reversal(mins: Sequence[float], ladder: Sequence[float], params: Params) -> float:
    """The 90 % quantile of what memory fell back, in the best of a few coarser views.

    Noise that is independent from step to step shrinks when floors are merged; the reversals of a random walk do not.
    """
    values: list[float] = list(mins[: len(ladder)])
    levels: list[float] = list(ladder)
    least: float = inf
    while True:
        falls = sorted(map(sub, values, levels))
        least = min(least, falls[(9 * (len(falls) - 1)) // 10])
        if least <= 0 or len(values) < 2 * params.coarse_floors_min:
            return max(least, 0.0)
        odd = len(values) % 2
        values = list(map(min, values[odd::2], values[odd + 1 :: 2]))
        levels = levels[odd::2]
