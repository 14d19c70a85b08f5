"""Which pool an event belongs to, for torch before 2.12, whose entries do not say it.

Segments at the end name their pool, and from its ``segment_alloc`` on a segment's addresses are its own. Pools whose
segments are all gone at the end cannot be told from the default one; their traffic is taken for its.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import replace

from tidegauge.core.allocator.trace import Action, KnownSegment, Trace

_DEFAULT = (0, 0)


def with_pools(trace: Trace) -> Trace:
    """The trace with ``pool`` filled, if it names none and has segments of other pools than the default one."""
    own = [segment for segment in trace.end or () if segment.pool != _DEFAULT]
    if trace.pool or not own:
        return trace
    pools = (_DEFAULT, *sorted({segment.pool for segment in own}))
    place = {pool: index for index, pool in enumerate(pools)}
    pool = array("H", bytes(2 * len(trace)))
    ranges = sorted(own)
    starts = [segment.address for segment in ranges]
    for event in range(len(trace) - 1, -1, -1):
        address = trace.address[event]
        inside = bisect_right(starts, address) - 1
        if inside < 0 or not _holds(ranges[inside], address) or trace.action[event] == Action.OOM:
            continue
        pool[event] = place[ranges[inside].pool]
        if trace.action[event] == Action.SEGMENT_ALLOC:
            del starts[inside], ranges[inside]
    return replace(trace, pool=pool, pools=pools)


def _holds(segment: KnownSegment, address: int) -> bool:
    return address < segment.address + segment.total_bytes
