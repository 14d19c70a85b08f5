"""Growth that ends by itself: what holds it can become no larger, and where memory stands once it is full.

A bound is what a rank said of itself at one moment; memory is what its node reads all the time. So a bound is believed
for as long as memory keeps to it, and only where the end fits into what is free. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict

MARGIN_LEFT, MARGIN_END, MIN_MARGIN_BYTES = 0.05, 0.01, 32 << 20
"""Memory may pass the end by the largest of: a share of what was to come, a share of the end, and this."""
STEPS_BEYOND = 8
"""For so many steps it must have stayed beyond: between two steps memory is at its lowest, within them it is not."""


class BoundState(str, Enum):
    """How a bound stands to the memory that there is."""

    HOLDS = "holds"
    """Memory keeps to it, and its end fits."""
    TOO_LARGE = "too_large"
    """There is less memory than it needs to become full."""
    REFUTED = "refuted"
    """Memory went on growing beyond its end: it is not what grows, or not it alone."""


class GrowthBound(NamedTuple):
    """What most of a growth goes into, and how much more that can take."""

    what: str
    """For people: "`features` (lru_cache, train.py)"."""
    kind: str
    """``ContainerBound.kind``, or ``cublas`` for workspaces."""
    items: int
    most_items: int
    step: int
    """When they were counted."""
    level_bytes: int
    """Live tensors at that step's end."""
    left_bytes: Band
    """What was to come from then on."""
    state: Optional[BoundState] = None
    """``None``: it is not known how much memory there is."""
    missing_bytes: Optional[int] = None
    """Where it is ``TOO_LARGE``: what it needs beyond what there is."""
    total_bytes: Optional[float] = None
    """What the growth takes in all, from its onset until it is full, by the rank's own readings."""

    @property
    def end_bytes(self) -> Band:
        """Where live tensors end."""
        return Band(*(self.level_bytes + left for left in self.left_bytes))

    @property
    def margin_bytes(self) -> float:
        """By how much memory may pass the end."""
        return max(MARGIN_LEFT * self.left_bytes.high, MARGIN_END * self.end_bytes.high, MIN_MARGIN_BYTES)

    @property
    def holds(self) -> bool:
        """Whether the growth is no danger."""
        return self.state is BoundState.HOLDS


def free_bytes(verdict: Verdict) -> Optional[float]:
    """What is left of the head-room, by what the growth has taken of it; ``None`` without a limit."""
    if not verdict.headroom_eaten or verdict.grown_bytes is None:
        return None
    return verdict.grown_bytes * (1 / verdict.headroom_eaten - 1)


def concerns(bound: GrowthBound, verdict: Verdict) -> bool:
    """Whether the detector speaks of the growth that the bound is of: tensors, since before they were counted."""
    of_tensors = verdict.state is not LeakState.OK and verdict.signal is Signal.ALLOCATED
    return of_tensors and (verdict.onset_step is None or verdict.onset_step <= bound.step)


def fitted(bound: GrowthBound, verdict: Verdict, level_bytes: int) -> GrowthBound:
    """With its state, where live tensors are at ``level_bytes`` between two steps."""
    free = free_bytes(verdict)
    if free is None:
        return bound._replace(state=None, missing_bytes=None)
    missing = bound.end_bytes.high + bound.margin_bytes - level_bytes - free
    if missing > 0:
        return bound._replace(state=BoundState.TOO_LARGE, missing_bytes=int(missing))
    return bound._replace(state=BoundState.HOLDS, missing_bytes=None)


def bounded_verdict(verdict: Verdict, bound: Optional[GrowthBound]) -> Verdict:
    """The verdict without danger and without an end of memory, where the growth ends before that."""
    if bound is None or not bound.holds:
        return verdict
    severity = Severity.WARNING if verdict.severity is Severity.CRITICAL else verdict.severity
    return verdict._replace(severity=severity, steps_to_oom=None, seconds_to_oom=None)


class BoundWatch:
    """Holds a bound against one rank's readings. Constant in size."""

    def __init__(self, bound: GrowthBound, *, refuted: bool = False) -> None:
        self.bound = bound
        self.refuted = refuted
        """Once and for all: only another look into the rank can tell what grows."""
        self._step = -1
        self._lowest: tuple[int, int] = (0, 0)
        """Of the step before and of this one."""
        self._beyond_since: Optional[int] = None
        self._total_bytes: Optional[float] = None

    def update(self, *, step: int, allocated_bytes: int, verdict: Verdict) -> Optional[GrowthBound]:
        """One reading, at whatever moment of a step. The bound with its state, which is ``None`` while nothing grows;
        ``None``: it says nothing of what grows."""
        if step != self._step:
            self._lowest = (self._lowest[1] if self._step >= 0 else allocated_bytes, allocated_bytes)
            self._step = step
        self._lowest = (self._lowest[0], min(self._lowest[1], allocated_bytes))
        level_bytes = min(self._lowest)
        if level_bytes <= self.bound.end_bytes.high + self.bound.margin_bytes:
            self._beyond_since = None
        elif self._beyond_since is None:
            self._beyond_since = step
        elif step - self._beyond_since >= STEPS_BEYOND:
            self.refuted = True
        if verdict.state is LeakState.OK and not self.refuted:  # peers may still be growing
            return self.bound._replace(state=None, missing_bytes=None, total_bytes=self._total_bytes)
        if not concerns(self.bound, verdict):
            return None
        if self.refuted:
            return self.bound._replace(state=BoundState.REFUTED, missing_bytes=None)
        if verdict.grown_bytes is not None:
            self._total_bytes = verdict.grown_bytes + max(self.bound.end_bytes.high - level_bytes, 0.0)
        return fitted(self.bound, verdict, level_bytes)._replace(total_bytes=self._total_bytes)
