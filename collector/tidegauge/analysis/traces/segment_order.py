"""In which order the segments that lived before a trace's first event were made, as far as the trace betrays it.

From torch 2.13 on, the older segment wins among equally large free blocks. A ring that has lost its beginning does not
say which is older; but each time the recording took a block of one segment where the model took one of another, it did.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from tidegauge.core.allocator.compiled import IS_COMPILED
from tidegauge.core.allocator.conf import parse_settings
from tidegauge.core.allocator.replay import replay as run_replay
from tidegauge.core.allocator.settings import TieBreak
from tidegauge.core.allocator.trace import KnownSegment, Trace

FIRST_WINDOW = 2_000
"""Events that are replayed at first; twice as many each time all of them come back."""
MOST_EVENTS = 20_000_000
MOST_EVENTS_UNCOMPILED = 500_000
"""Replayed in all, some ten seconds: the search ends there, with what it has found."""
MOST_REPLAYS = 1_000


def with_segment_order(trace: Trace) -> Trace:
    """The trace with ``start`` in an order under which its addresses come back, or as many of them as that can do.

    ``start`` is in order of age: the model gives the first one the lowest counter. A trace that is complete, or whose
    torch does not go by age, is returned as it is. Raises ``ValueError`` as a replay does.
    """
    settings = parse_settings(trace.alloc_conf, trace.torch_version)
    if settings.tie_break is not TieBreak.SEGMENT or len(trace.start) < 2:
        return trace
    order = _Order(trace.start)
    most = MOST_EVENTS if IS_COMPILED else MOST_EVENTS_UNCOMPILED
    length, replayed = min(FIRST_WINDOW, len(trace)), 0
    for _ in range(MOST_REPLAYS):
        attempt = replace(trace.first(length), start=order.segments())
        outcome = run_replay(attempt)
        mismatch = outcome.first_followed_tie or outcome.first_mismatch
        replayed += length
        if replayed >= most or (mismatch is None and length == len(trace)):
            break
        if mismatch is None:
            length = min(2 * length, len(trace))
        elif not order.is_older(mismatch.recorded, mismatch.replayed):
            break
    return replace(trace, start=order.segments())


class _Order:
    """What is known of the segments' ages, and an order that agrees with it."""

    def __init__(self, segments: Sequence[KnownSegment]) -> None:
        self._by_address = sorted(segments)
        self._starts = [segment.address for segment in self._by_address]
        self._order = list(range(len(self._by_address)))
        self._older: dict[int, set[int]] = {}
        """Of each segment, those that are known to be older."""

    def segments(self) -> tuple[KnownSegment, ...]:
        return tuple(self._by_address[place] for place in self._order)

    def is_older(self, first_address: int, second_address: int) -> bool:
        """Take note that the segment of the first address is older; false where that cannot be."""
        first, second = self._segment_of(first_address), self._segment_of(second_address)
        if first is None or second is None or first == second:
            return False
        if second in self._all_older(first) or first in self._all_older(second):
            return False  # it would contradict what is known, or was known and did not help
        self._older.setdefault(second, set()).add(first)
        # The older one, and what is known to be older still, moves in front of the younger one.
        moved = self._all_older(first) | {first}
        behind = self._order.index(second)
        before = [place for place in self._order[:behind] if place not in moved]
        in_front = [place for place in self._order if place in moved]
        after = [place for place in self._order[behind:] if place not in moved]
        self._order = before + in_front + after
        return True

    def _segment_of(self, address: int) -> Optional[int]:
        place = bisect_right(self._starts, address) - 1
        if place < 0:
            return None
        segment = self._by_address[place]
        return place if address < segment.address + segment.total_bytes else None

    def _all_older(self, place: int) -> set[int]:
        found: set[int] = set()
        ahead = [place]
        while ahead:
            new = self._older.get(ahead.pop(), set()) - found
            found |= new
            ahead.extend(new)
        return found
