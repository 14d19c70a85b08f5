"""The head-room left and the severity of a leak."""

from __future__ import annotations

from math import inf
from typing import Optional

from tidegauge.core.detector.params import Params
from tidegauge.core.verdicts import Band, Severity, Signal

_SEGMENT_BYTES = 20 << 20
"""A request of 1 to 10 MiB takes a segment of 20 MiB (`kLargeBuffer` of PyTorch's caching allocator)."""
_FLOOR_SHARE = 0.1
"""When no limit is known and more than the typical card is in use, this share of what is in use counts as free."""


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
