"""Bounds of growth: the container that holds it fills up, and memory then stays at a known level.

A bound is what a rank said of itself at one moment; memory is what its node reads all the time. So a bound is believed
for as long as memory keeps to it, and only where the end fits into what is free.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict

MARGIN_LEFT, MARGIN_END, MIN_MARGIN_BYTES = 0.05, 0.01, 32 << 20
"""Memory may pass the end by the largest of: a share of what was to come, a share of the end, and this."""
EARLIER_RUNS = "earlier_runs"
"""``GrowthBound.kind`` of what earlier runs of the same job did (``core.job_records.earlier_runs``)."""
MIN_SPARE_BYTES = 32 << 20
"""An end that was found not to fit must leave this much free before it is said to fit after all."""
STEPS_TO_CHANGE = 8
"""For so many steps memory must contradict a state before the state changes: one reading proves nothing, for what a
step needs for itself comes and goes."""


class BoundState(str, Enum):
    """The state of a bound, given the free memory and what grows."""

    HOLDS = "holds"
    """Memory keeps to it, and its end fits."""
    TOO_LARGE = "too_large"
    """There is less memory than it needs to become full."""
    REFUTED = "refuted"
    """Memory went on growing beyond its end: it is not what grows, or not it alone."""
    UNRELATED = "unrelated"
    """What grows now began later, or is of another signal."""


class GrowthBound(NamedTuple):
    """The container that holds most of a growth, and how much more it can hold."""

    what: str
    """For people: "`features` (lru_cache, train.py)"."""
    kind: str
    """``ContainerBound.kind``, ``cublas`` for workspaces, or ``EARLIER_RUNS``: then items are runs."""
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
    """Where it is ``TOO_LARGE``: what it needs beyond what there is; 0 where it would take all there is."""
    total_bytes: Optional[float] = None
    """What the growth takes in all, from its onset until it is full, by the rank's own readings."""
    of_rank: Optional[int] = None
    """The peer that was looked into; ``None``: the rank itself was."""

    @property
    def end_bytes(self) -> Band:
        """Live tensor bytes once the bound is reached."""
        return Band(*(self.level_bytes + left for left in self.left_bytes))

    @property
    def margin_bytes(self) -> float:
        """The tolerance by which memory may exceed the end."""
        return max(MARGIN_LEFT * self.left_bytes.high, MARGIN_END * self.end_bytes.high, MIN_MARGIN_BYTES)

    @property
    def is_of_evidence(self) -> bool:
        """Whether a look into this rank, or into a peer, found it."""
        return self.kind != EARLIER_RUNS

    @property
    def is_own(self) -> bool:
        """Whether a look into this very rank found it."""
        return self.is_of_evidence and self.of_rank is None

    @property
    def explains_growth(self) -> bool:
        """Whether the present growth may be that of the bound."""
        return self.state not in (BoundState.REFUTED, BoundState.UNRELATED)

    @property
    def holds(self) -> bool:
        """Whether the growth is no danger."""
        return self.state is BoundState.HOLDS


def free_bytes(verdict: Verdict) -> Optional[float]:
    """The head-room left, computed from the growth and its share of it; ``None`` without a limit."""
    if not verdict.headroom_eaten or verdict.grown_bytes is None:
        return None
    return verdict.grown_bytes * (1 / verdict.headroom_eaten - 1)


def concerns(bound: GrowthBound, verdict: Verdict) -> bool:
    """Whether the verdict is about the bound's growth: of tensors, with an onset before the bound was measured."""
    of_tensors = verdict.state is not LeakState.OK and verdict.signal is Signal.ALLOCATED
    return of_tensors and (verdict.onset_step is None or verdict.onset_step <= bound.step)


def fitted(bound: GrowthBound, verdict: Verdict, level_bytes: int) -> GrowthBound:
    """The bound with its state by this one reading, where live tensors are at ``level_bytes`` between two steps."""
    missing = _missing_bytes(bound, verdict, level_bytes)
    if missing is None:
        return bound._replace(state=None, missing_bytes=None)
    return _in_state(bound._replace(state=BoundState.TOO_LARGE if missing > 0 else BoundState.HOLDS), missing)


def _missing_bytes(bound: GrowthBound, verdict: Verdict, level_bytes: int) -> Optional[float]:
    """The bytes that the bound's end needs beyond what is free, below 0 where it fits; ``None`` without a limit. Where
    memory has passed the likely end by more than a margin, the highest end counts: some dozen items give only a rough
    size of all."""
    free = free_bytes(verdict)
    if free is None:
        return None
    end = bound.end_bytes
    return (end.likely if level_bytes <= end.likely + bound.margin_bytes else end.high) - level_bytes - free


def _in_state(bound: GrowthBound, missing: float) -> GrowthBound:
    return bound._replace(missing_bytes=max(int(missing), 0) if bound.state is BoundState.TOO_LARGE else None)


def bounded_verdict(verdict: Verdict, bound: Optional[GrowthBound]) -> Verdict:
    """The verdict without danger and without an end of memory, where the growth ends before that."""
    if bound is None or not bound.holds:
        return verdict
    severity = Severity.WARNING if verdict.severity is Severity.CRITICAL else verdict.severity
    return verdict._replace(severity=severity, steps_to_oom=None, seconds_to_oom=None)


class BoundWatch:
    """Checks a bound against one rank's readings. Constant in size. A state changes once memory has contradicted it for
    ``STEPS_TO_CHANGE`` steps, and ``REFUTED`` never: only another look into the rank can tell what grows."""

    def __init__(self, bound: GrowthBound) -> None:
        self.bound = bound
        """As evidence found it, with the state that was last known."""
        self._step = -1
        self._lowest: tuple[int, int] = (0, 0)
        """Of the step before and of this one."""
        self._beyond_since: Optional[int] = None
        self._otherwise_since: Optional[int] = None
        self._total_bytes: Optional[float] = None
        self._told: tuple[Optional[int], Optional[int]] = (None, None)
        """The growth of the last reading at which memory was above what it was when the items were counted."""

    def update(self, *, step: int, allocated_bytes: int, verdict: Verdict) -> GrowthBound:
        """The bound with its state by one more reading, at whatever moment of a step: ``None`` while nothing grows."""
        level_bytes = self._level_bytes(step, allocated_bytes)
        if self._is_beyond(step, level_bytes, free_bytes(verdict)):
            self.bound = self.bound._replace(state=BoundState.REFUTED, missing_bytes=None)
        if verdict.state is LeakState.OK and self.bound.state is not BoundState.REFUTED:  # peers may still be growing
            return self.bound._replace(state=None, missing_bytes=None, total_bytes=self._total_bytes)
        if not concerns(self.bound, verdict):
            return self.bound._replace(state=BoundState.UNRELATED, missing_bytes=None)
        if self.bound.state is BoundState.REFUTED:
            return self.bound
        if self._was_emptied(level_bytes, verdict):
            return self.bound._replace(total_bytes=self._total_bytes)
        if verdict.grown_bytes is not None:
            self._total_bytes = verdict.grown_bytes + max(self.bound.end_bytes.high - level_bytes, 0.0)
        return self._fitted(step, level_bytes, verdict)._replace(total_bytes=self._total_bytes)

    def _level_bytes(self, step: int, allocated_bytes: int) -> int:
        """Live tensors between two steps, as far as readings at any moment tell."""
        if step != self._step:
            self._lowest = (self._lowest[1] if self._step >= 0 else allocated_bytes, allocated_bytes)
            self._step = step
        self._lowest = (self._lowest[0], min(self._lowest[1], allocated_bytes))
        return min(self._lowest)

    def _is_beyond(self, step: int, level_bytes: int, free: Optional[float]) -> bool:
        """Whether memory has grown past the end, for long enough or with little left."""
        if level_bytes <= self.bound.end_bytes.high + self.bound.margin_bytes:
            self._beyond_since = None
            return False
        if self._beyond_since is None:
            self._beyond_since = step
        is_urgent = free is not None and free <= self.bound.margin_bytes
        return is_urgent or step - self._beyond_since >= STEPS_TO_CHANGE

    def _was_emptied(self, level_bytes: int, verdict: Verdict) -> bool:
        """Whether what had filled has been given back, and the verdict is of before: it says nothing of now."""
        growth = verdict.onset_step, verdict.grown_bytes
        if level_bytes >= self.bound.level_bytes - self.bound.margin_bytes:
            self._told = growth
            return False
        return growth == self._told

    def _fitted(self, step: int, level_bytes: int, verdict: Verdict) -> GrowthBound:
        missing = _missing_bytes(self.bound, verdict, level_bytes)
        if missing is None:
            return self.bound._replace(state=None, missing_bytes=None)
        was_too_large = self.bound.state is BoundState.TOO_LARGE
        is_too_large = missing > (-MIN_SPARE_BYTES if was_too_large else 0)
        self._change_to(BoundState.TOO_LARGE if is_too_large else BoundState.HOLDS, step)
        return _in_state(self.bound, missing)

    def _change_to(self, state: BoundState, step: int) -> None:
        """Change to the state of this reading: at once where no state is known, else only after ``STEPS_TO_CHANGE``."""
        if self.bound.state in (None, state):
            self.bound = self.bound._replace(state=state)
            self._otherwise_since = None
        elif self._otherwise_since is None:
            self._otherwise_since = step
        elif step - self._otherwise_since >= STEPS_TO_CHANGE:
            self.bound = self.bound._replace(state=state)
            self._otherwise_since = None
