"""One window of evidence: history on, some steps to warm up, a snapshot, the window's steps, a snapshot, history off.

The training thread does all of this at step boundaries, a snapshot at two of them. The evidence thread does the rest
(packing, searching for holders, writing). It also ends a window whose job makes no more steps: history is
never left on because somebody died or waits.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.probe.faults import describe
from tidegauge.probe.runtime.history import History, Recorder
from tidegauge.probe.runtime.rank_snapshot import NoSnapshotError, RankSnapshots, RawSnapshot

ENOUGH_STEPS = 5
"""Between the snapshots, where steps are slow: of what each step keeps, four blocks are not of the step in progress."""
_WARM_UP_SHARE = 4
"""Divisor of the time: slow steps warm up for at most a quarter of it (and at least one step)."""
_PATIENCE_S, _PATIENCE_STEPS = 30.0, 10
_NEXT_STEP = 1.5
"""The late snapshot is taken now if a next step this many times longer than the last would end too late."""


class WindowAsk(NamedTuple):
    """The parameters of the command ``evidence``."""

    evidence_id: str
    reason: str
    warm_up_steps: int = 4
    """Gives memory that is allocated anew in every step a stack before the first snapshot."""
    window_steps: int = 30
    enough_s: float = 30.0
    """Between the snapshots: slow steps end the window after this, once there are ``ENOUGH_STEPS``."""
    most_s: float = 120.0
    """From the command to the end of recording."""
    max_events: int = 10_000
    """Size of the ring at most."""
    holders: bool = True
    """Whether to search for the holders of the blocks that grew."""


class WindowPhase(str, Enum):
    """A window's phase, as ``evidence_status`` reports it."""

    WARMING = "warming"
    RECORDING = "recording"
    """Between the two snapshots."""
    SEARCHING = "searching"
    """Recording is over; the evidence thread works."""
    DONE = "done"


class EvidenceWindow:
    """The training thread's part of a window. ``next_snapshot`` hands over to the evidence thread."""

    def __init__(
        self,
        ask: WindowAsk,
        snapshots: RankSnapshots,
        history: History,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ask = ask
        self.phase = WindowPhase.WARMING
        self.problem: Optional[str] = None
        self.began_step = snapshots.steps()
        """Step at which history began; before that, of the command."""
        self.began_unix_s = time.time()
        self.longest_stall_s = 0.0
        self.step_began_us: Optional[int] = None
        """Unix time at which the step that ended at the late snapshot began; set with it."""
        self.stopped = False
        """The probe was closed or detached."""
        self._snapshots = snapshots
        self._history = history
        self._clock_s = clock_s
        self._lock = threading.RLock()  # a signal handler may end in here again
        self._taken: queue.SimpleQueue[Optional[RawSnapshot]] = queue.SimpleQueue()
        self._began_s = clock_s()
        self._boundary_s: Optional[float] = None
        """Time of the last boundary; ``None``: history has not begun."""
        self._longest_step_s = 0.0
        self._shortest_step_s = math.inf
        self._boundary_us = 0
        """The same as Unix time, by which the allocator dates its events."""
        self._early_step: Optional[int] = None
        self._early_s = 0.0
        self._ours = False
        """Whether this window switched history on, and so switches it off."""

    # ----------------------------------------------------------------- in the training thread

    def at_boundary(self, *, least_s: float = 0.0) -> None:
        """A training step ended; ``least_s``: between the snapshots, where boundaries may be closer than steps. An
        error of torch ends the window and passes through."""
        with self._lock:
            if not self.waits_for_steps or self._snapshots.capturing:
                return
            began_s, began_us = self._clock_s(), time.time_ns() // 1000
            if self._boundary_s is not None:
                self._longest_step_s = max(self._longest_step_s, began_s - self._boundary_s)
                self._shortest_step_s = min(self._shortest_step_s, began_s - self._boundary_s)
            try:
                self._advance(self._snapshots.steps(), began_s, least_s)
            except NoSnapshotError as error:
                self._end(str(error))
            except Exception as error:
                self._end(f"internal error in the probe ({describe(error)})")
                raise
            finally:
                self._boundary_s, self._boundary_us = began_s, began_us
                self.longest_stall_s = max(self.longest_stall_s, self._clock_s() - began_s)

    @property
    def waits_for_steps(self) -> bool:
        """Whether the window still acts at step boundaries."""
        return self.phase in (WindowPhase.WARMING, WindowPhase.RECORDING)

    @property
    def is_over(self) -> bool:
        """Whether another one may begin."""
        return self.phase is WindowPhase.DONE

    @property
    def step(self) -> int:
        """Training steps that the process has finished."""
        return self._snapshots.steps()

    def _advance(self, step: int, now_s: float, least_s: float) -> None:
        if self._boundary_s is None:
            self._begin(step)
        elif self._early_step is None:
            if self._warm(step, now_s):
                self._taken.put(self._snapshots.take(most_events=0))
                self._early_step, self._early_s = step, now_s
                self.phase = WindowPhase.RECORDING
        elif self._complete(step, now_s, self._boundary_s, least_s):
            self._note_recorder()
            self.step_began_us = self._boundary_us
            self._taken.put(self._snapshots.take(most_events=self.ask.max_events))
            self._end(None)

    def _begin(self, step: int) -> None:
        self.began_step, self.began_unix_s = step, time.time()
        self._ours = self._history.begin(entries=self._snapshots.enough_events(self.ask.max_events), step=step)
        if not self._ours and self._history.recorder() is Recorder.JOB:
            self._note("the job itself records allocation history; it was left unchanged")

    def _warm(self, step: int, now_s: float) -> bool:
        late = now_s - self._began_s >= min(self.ask.enough_s, self.ask.most_s) / _WARM_UP_SHARE
        return step >= self.began_step + self.ask.warm_up_steps or (late and step > self.began_step)

    def _complete(self, step: int, now_s: float, last_s: float, least_s: float) -> bool:
        assert self._early_step is not None
        steps, next_s = step - self._early_step, now_s + _NEXT_STEP * (now_s - last_s)
        apart_s = now_s - self._early_s
        is_whole = steps >= self.ask.window_steps and apart_s >= least_s
        is_enough = steps >= ENOUGH_STEPS and apart_s >= self.ask.enough_s
        return is_whole or is_enough or next_s >= self._deadline_s

    def _note_recorder(self) -> None:
        if self._ours and self._history.taken_over:
            self._note("the job started to record allocation history itself; Tidegauge's recording was stopped")
        elif self._history.recorder() is Recorder.NOBODY:
            self._note("the job switched allocation history off; allocations since then have no stack")

    # ----------------------------------------------------------------- in the evidence thread

    def next_snapshot(self) -> Optional[RawSnapshot]:
        """The next one, waited for until the window's time is up; ``None``: there are no more."""
        try:
            return self._taken.get(timeout=max(0.0, self._deadline_s - self._clock_s()))
        except queue.Empty:
            self._expire()
            return self._taken.get()

    def _expire(self) -> None:
        with self._lock:
            if self.waits_for_steps:
                what = "no training step ended" if self._boundary_s is None else "too few training steps ended"
                self._end(f"{what} within {self.ask.most_s:g} s")

    @property
    def _deadline_s(self) -> float:
        return self._began_s + self.ask.most_s

    @property
    def patience_s(self) -> float:
        """How long to wait for the end of another step: one that takes longer does not come."""
        return max(_PATIENCE_S, _PATIENCE_STEPS * self._longest_step_s)

    @property
    def step_s(self) -> float:
        """How long each of its steps took at least; 0: there was none."""
        return 0.0 if self._shortest_step_s == math.inf else self._shortest_step_s

    # ----------------------------------------------------------------- in any thread

    def stop(self) -> None:
        """Stop in the middle: history off, and the evidence thread ends without files."""
        with self._lock:
            self.stopped = True
            if self.waits_for_steps:
                self._end("it was stopped")

    def _end(self, problem: Optional[str]) -> None:
        self.phase = WindowPhase.SEARCHING
        if problem is not None:
            self._note(problem)
        try:
            if self._ours:
                self._history.end()
        finally:
            self._taken.put(None)

    def _note(self, problem: str) -> None:
        self.problem = problem if self.problem is None else f"{self.problem}; {problem}"
