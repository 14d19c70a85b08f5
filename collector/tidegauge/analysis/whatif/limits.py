"""Limits of a recorded job's memory, a cap or the device, as far as the recording shows them."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.allocator.results import FailedRequest, Replay
from tidegauge.core.allocator.trace import Action, Trace


class SearchLimits(NamedTuple):
    """Limits on reserved memory in bytes; ``None``: no limit, or an unknown one."""

    cap_bytes: Optional[int] = None
    """As ``set_per_process_memory_fraction`` sets it."""
    capacity_bytes: Optional[int] = None
    """What ``cudaMalloc`` can give to this process in all."""
    below_bytes: Optional[int] = None
    """Where the cap was concluded from failed requests: it was ``cap_bytes`` at least, and below this."""
    is_own: bool = True
    """Whether the job itself runs under this cap; otherwise it was only asked about."""

    @property
    def lowest_bytes(self) -> Optional[int]:
        return self.capacity_bytes if self.cap_bytes is None else self.cap_bytes


def own_limits(trace: Trace, recorded: Replay) -> SearchLimits:
    """The recorded cap; where the file names none, what its failed requests show. ``recorded``: ``trace``, replayed."""
    if trace.cap_bytes is not None:
        return SearchLimits(trace.cap_bytes)
    failed = [request for request in recorded.failed if trace.action[request.event] == Action.OOM]
    # The driver had enough for these: so it was a cap that refused them.
    capped = [request for request in failed if trace.address[request.event] >= request.segment_bytes]
    if capped:
        below = min(_held(trace, request) + request.segment_bytes for request in capped)
        return SearchLimits(
            cap_bytes=recorded.peak_reserved_bytes, below_bytes=max(below, recorded.peak_reserved_bytes)
        )
    shown = [_held(trace, request) + trace.address[request.event] for request in failed]
    return SearchLimits(capacity_bytes=max(min(shown), recorded.peak_reserved_bytes) if shown else None)


def _held(trace: Trace, request: FailedRequest) -> int:
    """Reserved when the request failed for good: the allocator had first given back what it could."""
    given_back = 0
    for event in range(request.event - 1, -1, -1):
        action = trace.action[event]
        if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
            given_back += trace.size_bytes[event]
        elif action != Action.FREE_COMPLETED:
            break
    return request.reserved_bytes - given_back
