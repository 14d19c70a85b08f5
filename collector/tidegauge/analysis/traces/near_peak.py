"""The part of a long trace in which most is allocated, where all of it would take too long."""

from __future__ import annotations

from typing import NamedTuple

from tidegauge.analysis.traces.reading import with_beginning, with_pools, with_segment_order
from tidegauge.analysis.traces.state_before import with_start
from tidegauge.core.allocator.trace import Action, Trace

MAX_PROFILED_EVENTS = 500_000
"""Of a longer trace those near the peak are profiled: 100,000 take a second or two and 110 MiB of memory."""


class TracePart(NamedTuple):
    """Consecutive events of a trace, with the state before the first."""

    trace: Trace
    first: int
    """The event of the whole trace that is its first."""


def near_peak(trace: Trace, most_events: int) -> TracePart:
    """The newest ``most_events``, or those around the moment with most allocated, as asked for, if it is older.

    ``trace`` is as it was read, before ``with_beginning``. A trace that does not list its segments at its end is
    returned whole: only they tell what was there before a part. Raises ``ValueError`` as ``with_beginning`` does.
    """
    events = len(trace)
    if events <= most_events or trace.end is None:
        return TracePart(with_beginning(trace), 0)
    first = max(min(events - most_events, _peak_event(trace) - most_events // 2), 0)
    part = with_start(with_pools(trace.since(first))).first(most_events)
    return TracePart(part if part.complete else with_segment_order(part), first)


def _peak_event(trace: Trace) -> int:
    allocated = highest = peak = 0
    for event, (action, size_bytes) in enumerate(zip(trace.action, trace.size_bytes)):
        if action == Action.ALLOC:
            allocated += size_bytes
            if allocated >= highest:  # of equal ones, as steps are, the newest
                highest, peak = allocated, event
        elif action == Action.FREE_REQUESTED:
            allocated -= size_bytes
    return peak
