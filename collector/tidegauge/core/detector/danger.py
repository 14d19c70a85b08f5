"""Judges how dangerous growth is: the head-room left, the severity, and whether it reaches the limit or levels off."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import inf, sqrt
from operator import sub
from typing import Optional

from tidegauge.core.detector.params import Params
from tidegauge.core.detector.shape import ladder_of, usual_reversal
from tidegauge.core.detector.state_dicts import StateDict, plain, set_plain
from tidegauge.core.verdicts import Band, Severity, Signal

DANGER_LOOKS = 2
"""Looks in a row that must expect growth to reach the limit."""
_SEGMENT_BYTES = 20 << 20
"""A request of 1 to 10 MiB takes a segment of 20 MiB (`kLargeBuffer` of PyTorch's caching allocator)."""
_FLOOR_SHARE = 0.1
"""When no limit is known and more than the typical card is in use, this share of what is in use counts as free."""


class Danger:
    """The alarm that one signal's growth will run out of memory. It is raised at the second look in a row that expects
    so, or at one that is sure, and withdrawn at the first that does not."""

    __slots__ = ("_agreed", "_look", "raised")

    def __init__(self) -> None:
        self.raised = False
        self._agreed = 0
        self._look = -1

    def judged(self, reaches: bool, *, sure: bool, look: int) -> bool:
        """Count look number `look` for or against danger, and return whether danger is raised."""
        if not reaches:
            self.withdraw()
        elif look != self._look:
            self._agreed += 1
            self._look = look
            self.raised = self.raised or sure or self._agreed >= DANGER_LOOKS
        return self.raised

    def withdraw(self) -> None:
        self.raised = False
        self._agreed = 0

    def state_dict(self) -> StateDict:
        return plain(self, self.__slots__)

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, self.__slots__, state)


def still_to_come(mins: Sequence[float], params: Params, *, raised: bool) -> float:
    """Bytes that the growth in `mins`, all floors of a run, is expected to gain yet; infinite where it does not slow.

    0 when the next rise is overdue; that is sooner where no danger was `raised` yet, for an alarm wants a recent rise.
    Else an exponential approach to a plateau is laid through the ends of the thirds: once through all of the growth,
    and once without its first quarter, in which a job may have warmed up. The larger counts.
    """
    end = len(mins) - 1
    ladder = ladder_of(mins, end)
    gained = ladder[end] - ladder[0]
    if gained <= 0:
        return 0.0
    onset = bisect_right(ladder, ladder[0] + params.quiet_share * gained) - 1
    if end - onset < 3:
        return inf
    if _is_overdue(ladder, onset, usual_reversal(mins, ladder, params), params, raised=raised):
        return 0.0
    return max(_to_plateau(ladder[start:], params) for start in (onset, (3 * onset + end) // 4))


def _is_overdue(ladder: Sequence[float], onset: int, usual_fall: float, params: Params, *, raised: bool) -> bool:
    """Nothing was gained for longer than ever during the growth."""
    span = len(ladder) - 1 - onset
    gained = ladder[-1] - ladder[onset]
    pause = longest = second = 0
    rise, level = 0.0, ladder[onset]
    for value in ladder[onset:]:
        if value - level >= gained / params.levels:
            second, longest = sorted((second, longest, pause))[1:]
            pause, rise, level = 0, value - level, value
        pause += 1
    # A pause that came once is not expected again; a list that doubled is filled at the old pace first.
    usual = max(second, span * rise / gained)
    patience = params.overdue_factor * usual + 2 if raised else usual + 1
    return pause > patience + 1.5 * span * usual_fall / gained


def _to_plateau(ladder: Sequence[float], params: Params) -> float:
    """Bytes from the last rung to the plateau."""
    span = len(ladder) - 1
    gained = ladder[-1] - ladder[0]
    if span < 3 or gained <= 0:
        return 0.0
    newer = ladder[span // 2 :]
    largest = max(map(sub, newer[1:], newer))
    third = ladder[-1] - ladder[2 * span // 3]
    rate = (3 * third + params.overdue_few * largest) / gained
    if rate >= 1:
        return inf
    # The thirds of an approach to a plateau are as 1 : u : u^2.
    u = (rate + sqrt(rate * rate + 4 * rate * (3 - rate))) / (2 * (3 - rate))
    return float(gained * u**3 / (1 - u**3))


def head_room(
    signal: Signal, limit: int, *, peak: int, next_peak: int, pieces: Optional[int], reserved: int, nontorch: int
) -> Band:
    """Bytes until the process must fail, were only `signal` to grow.

    The allocator gives cached blocks back before it fails, so a growing `allocated` meets its limit when the *peak* of
    tensors does, together with the `pieces` between them (`inactive_split_bytes.all.current`): those stay. Where they
    are not known, low takes a quarter of the cache for them. Low also reckons with `next_peak`, what the step that
    needed most would need now, and with a request that needs a new segment. Fragments are that cache themselves, and a
    library outside the allocator cannot make it give anything back: for these two, what counts is what is reserved.
    """
    if signal is Signal.NONTORCH or (signal is not Signal.ALLOCATED and pieces is None):
        free = float(max(limit - nontorch - reserved, 0))
        return Band(free, free, free)
    free = limit - nontorch - peak
    stuck = 0 if pieces is None else pieces
    low = limit - nontorch - max(next_peak, peak) - (max(reserved - peak, 0) / 4 if pieces is None else pieces)
    segment = min(_SEGMENT_BYTES, 0.1 * max(low, 0))
    return Band(max(low - segment, 0.0), float(max(free - stuck, 0)), float(max(free, 0)))


def host_room(free: Optional[int]) -> Band:
    """Bytes that host memory may still grow by. Without bound where that is not known: no growth is urgent then."""
    room = inf if free is None else float(free)
    return Band(room, room, room)


def assumed_limit(params: Params, *, reserved: int, nontorch: int) -> int:
    """The limit that severity is judged by when none is known. No time to out-of-memory is ever stated from it."""
    used = reserved + nontorch
    return max(params.typical_limit_bytes, int(used * (1 + _FLOOR_SHARE)))


def severity_of(
    *,
    gained: float,
    head: float,
    seconds_seen: float,
    seconds_left: Optional[float],
    bytes_per_step: Optional[float],
    limit_known: bool,
    params: Params,
) -> Severity:
    """Note, warning or critical: by the likely time that is left and by the share of the head-room eaten."""
    if not limit_known and bytes_per_step is not None and bytes_per_step <= params.note_bytes_per_step:
        return Severity.NOTE
    eaten = gained / (gained + head) if gained + head > 0 else 1.0
    if seconds_left is None or seconds_left > params.warning_s:
        return Severity.NOTE
    if eaten >= params.danger_share_soon or (eaten >= params.danger_share and seconds_seen >= params.danger_min_s):
        return Severity.CRITICAL
    return Severity.WARNING
