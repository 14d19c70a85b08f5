"""Allocated memory over a recording, and its peak once the lives of blocks are changed."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple, Optional

from tidegauge.analysis.profile.lives import BlockLife
from tidegauge.core.profile.advice import AdvisedMeasure, Measure


class LifeChange(NamedTuple):
    """Bytes that are there more, or less where negative, from just after one event until another."""

    begin: int
    """``BEFORE``: from the start of the recording."""
    end: Optional[int]
    """The first event at which they are not; ``None``: to the end of the recording."""
    more_bytes: int


def left_out(block: BlockLife, share: float = 1.0) -> LifeChange:
    """``share`` of a block taken away for its whole life."""
    return LifeChange(block.made, block.freed, -round(share * block.size_bytes))


def left_out_from(block: BlockLife, begin: int, end: Optional[int] = None) -> LifeChange:
    """A block taken away for the part of its life between two events."""
    begin = max(begin, block.made)
    ends = [one for one in (end, block.freed) if one is not None]
    last = min(ends) if ends else None
    return LifeChange(begin, last if last is None else max(last, begin), -block.size_bytes)


class Curve:
    """Bytes just after each event, from ``BEFORE`` on."""

    def __init__(self, events: int, blocks: Iterable[BlockLife]) -> None:
        self._events = events
        self._steps = self._with(
            [0] * (events + 2), (LifeChange(one.made, one.freed, one.size_bytes) for one in blocks)
        )

    def bytes_after(self, changes: Iterable[LifeChange] = ()) -> list[int]:
        """At each moment; the first is ``BEFORE``."""
        return list(accumulate(self._with(list(self._steps), changes)))[:-1]

    def peak_bytes(self, changes: Iterable[LifeChange] = ()) -> int:
        return max(self.bytes_after(changes))

    def _with(self, steps: list[int], changes: Iterable[LifeChange]) -> list[int]:
        for begin, end, more_bytes in changes:
            if end is None or end > begin:
                steps[begin + 1] += more_bytes
                steps[self._events + 1 if end is None else end + 1] -= more_bytes
        return steps


def advised(
    measure: Measure,
    curve: Curve,
    changes: Iterable[LifeChange],
    *,
    action: str,
    price: str,
    condition: Optional[str] = None,
    is_bound: bool = False,
) -> AdvisedMeasure:
    """A measure that changes lives of blocks, with the peak that it comes to."""
    peak_bytes = curve.peak_bytes(changes)
    saved_bytes = curve.peak_bytes() - peak_bytes
    return AdvisedMeasure(measure, peak_bytes, saved_bytes, action, price, condition, is_bound=is_bound)
