"""The present duration of a step, which converts steps left into seconds left.

The mean over a growth is no answer: a job that was suspended for six hours, or whose data was cold at first, would be
told hours that it does not have. What counts is the usual step of the last few, and the pauses that come again and
again at this speed (evaluations, checkpoints). A pause that came once is not expected again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Optional

from tidegauge.core.detector.state_dicts import StateDict, plain, set_plain
from tidegauge.core.verdicts import Band

_RECENT = 33
"""Durations whose median is the usual step. A change of speed shows after half as many."""
_NEWEST = 3
"""Steps in a row that show a change of speed at once."""
_BLOCKS = 16
"""Blocks kept of each length; so many make one of the next."""
_LENGTHS = 3
"""Lengths of blocks: 33, 528 and 8,448 steps. The longest of which there are enough says what pauses cost: pauses
that come again are in each of its blocks, and one that came once is in one."""
_BLOCKS_MIN = 4
"""Fewest blocks at the present speed that can say so."""
_SAME_SPEED = 2.0
"""A block belongs to the present speed when its usual step is within this factor of the usual step now."""

_STATE = ("_filled", "_last_step", "_last_s")


class _Block(NamedTuple):
    """A block of consecutive steps."""

    usual_s: float
    """The median duration."""
    mean_s: float


class StepTimes:
    """Durations of the steps of one rank. `tick` is the hot path: one call a sample."""

    __slots__ = ("_blocks", "_filled", "_known", "_last_s", "_last_step", "_recent")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._filled = 0
        self._known: tuple[int, Optional[Band]] = (0, None)
        """What `per_step_s` last said, and after how many steps."""
        self._last_step: Optional[int] = None
        self._last_s = 0.0
        self._blocks: list[deque[_Block]] = [deque(maxlen=_BLOCKS) for _ in range(_LENGTHS)]

    def state_dict(self) -> StateDict:
        return {**plain(self, _STATE), "recent": list(self._recent), "blocks": [list(each) for each in self._blocks]}

    def load_state_dict(self, state: StateDict) -> None:
        set_plain(self, _STATE, state)
        self._recent.extend(state["recent"])
        for blocks, kept in zip(self._blocks, state["blocks"]):
            blocks.extend(_Block(*one) for one in kept)

    def tick(self, step: int, time_s: float) -> None:
        """A step ended. Where several went by since the last sample, each took an equal part of the time."""
        last = self._last_step
        if last is None or step <= last:
            if last is None:
                self._last_step, self._last_s = step, time_s
            return
        took_s = time_s - self._last_s
        self._last_step = step
        self._last_s = time_s
        if took_s <= 0:  # whoever writes the ring may write any time
            return
        self._recent.append(took_s / (step - last))
        self._filled = filled = self._filled + 1
        if filled % _RECENT == 0:
            self._close()

    def _close(self) -> None:
        block = _Block(_median(self._recent), sum(self._recent) / len(self._recent))
        count = self._filled // _RECENT
        for blocks in self._blocks:
            blocks.append(block)
            if count % _BLOCKS:
                return
            count //= _BLOCKS
            block = _Block(_median([one.usual_s for one in blocks]), sum(one.mean_s for one in blocks) / len(blocks))

    def per_step_s(self) -> Optional[Band]:
        """Seconds per step: low is the usual step, likely has its share of the pauses, high more than that.

        ``None`` before the third step is over, and without a clock.
        """
        if self._known[0] != self._filled:
            self._known = (self._filled, self._per_step_s())
        return self._known[1]

    def _per_step_s(self) -> Optional[Band]:
        if len(self._recent) < _NEWEST:
            return None
        usual_s = _median(self._recent)
        if usual_s <= 0:
            return None
        low_s = likely_s = high_s = usual_s
        for blocks in reversed(self._blocks):
            pauses = sorted(
                one.mean_s - one.usual_s
                for one in blocks
                if usual_s / _SAME_SPEED <= one.usual_s <= usual_s * _SAME_SPEED
            )
            if len(pauses) >= _BLOCKS_MIN:
                # What came once is not expected again: the longest counts as the second longest.
                likely_s = usual_s + (sum(pauses[:-1]) + pauses[-2]) / len(pauses)
                high_s = usual_s + pauses[-2]
                if likely_s <= 0:  # no step takes less than nothing: the times are made up
                    likely_s = high_s = usual_s
                break
        newest_s = _median([self._recent[-back] for back in range(1, _NEWEST + 1)])
        if usual_s / _SAME_SPEED <= newest_s <= usual_s * _SAME_SPEED:
            newest_s = usual_s  # else the speed has just changed, and the middle of the last steps is still the old one
        return Band(min(low_s, likely_s, newest_s), likely_s, max(high_s, likely_s, newest_s))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
