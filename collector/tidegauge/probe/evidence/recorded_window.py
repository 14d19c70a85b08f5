"""A window in which the probe records allocation history: on at one step boundary, snapshots at others, off.

The training thread does all of this at step boundaries. The evidence thread does the rest (packing, searching,
writing). It also ends a window whose job makes no more steps: history is never left on because somebody died or waits.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from enum import Enum
from typing import Optional

from tidegauge.probe.faults import describe
from tidegauge.probe.runtime.history import History, Recorder
from tidegauge.probe.runtime.rank_snapshot import NoSnapshotError, RankSnapshots, RawSnapshot

_PATIENCE_S, _PATIENCE_STEPS = 30.0, 10
_NEXT_STEP = 1.5
"""The last snapshot is taken now if a next step this many times longer than the last would end too late."""


class WindowPhase(str, Enum):
    """A window's phase, as commands report it."""

    WARMING = "warming"
    RECORDING = "recording"
    """Between the first and the last step that it is about."""
    SEARCHING = "searching"
    """Recording is over; the evidence thread works."""
    DONE = "done"


class RecordedWindow:
    """The training thread's part of a window. ``next_snapshot`` hands over to the evidence thread."""

    def __init__(
        self,
        window_id: str,
        snapshots: RankSnapshots,
        history: History,
        *,
        most_s: float,
        max_events: int,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most_s``: from now to the end of recording. ``max_events``: size of the ring."""
        self.window_id = window_id
        self.phase = WindowPhase.WARMING
        self.problem: Optional[str] = None
        self.began_step = snapshots.steps()
        """Step at which history began; before that, of the command."""
        self.began_unix_s = time.time()
        self.longest_stall_s = 0.0
        """The longest time for which training stood still for it."""
        self.stopped = False
        """The probe was closed or detached."""
        self._snapshots = snapshots
        self._history = history
        self._most_s = most_s
        self._max_events = max_events
        self._clock_s = clock_s
        self._lock = threading.RLock()  # a signal handler may end in here again
        self._taken: queue.SimpleQueue[Optional[RawSnapshot]] = queue.SimpleQueue()
        self._began_s = clock_s()
        self._boundary_s: Optional[float] = None
        """Time of the last boundary; ``None``: there was none."""
        self._longest_step_s = 0.0
        self._shortest_step_s = math.inf
        self._boundary_us = 0
        """The same as Unix time, by which the allocator dates its events."""
        self._is_open = False
        self._is_begun = False
        self._ours = False
        """Whether this window switched history on, and so switches it off."""

    def open(self) -> None:
        """Begin at the next boundary. Until then the evidence thread makes ready for it."""
        self._is_open = True

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
                if self._is_open:
                    self._advance(self._snapshots.steps(), began_s, began_us, least_s)
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

    def _advance(self, step: int, now_s: float, now_us: int, least_s: float) -> None:
        """What is to be done at this boundary."""
        raise NotImplementedError

    def _begin(self, step: int) -> None:
        self._is_begun = True
        self.began_step, self.began_unix_s = step, time.time()
        self._ours = self._history.begin(entries=self._entries(), step=step)
        if not self._ours and self._history.recorder() is Recorder.JOB:
            self._note("the job itself records allocation history; it was left unchanged")

    def _entries(self) -> int:
        """The size of the ring."""
        return self._max_events

    def _is_time_up(self, now_s: float) -> bool:
        """Whether the next step would end too late."""
        assert self._boundary_s is not None
        return now_s + _NEXT_STEP * (now_s - self._boundary_s) >= self._deadline_s

    def _take_last(self, *, recorded: Optional[int] = None) -> None:
        """The snapshot with the recorded events, at which recording ends; ``recorded`` as in ``RankSnapshots.take``."""
        if self._ours and self._history.taken_over:
            self._note("the job started to record allocation history itself; Tidegauge's recording was stopped")
        elif self._history.recorder() is Recorder.NOBODY:
            self._note("the job switched allocation history off; allocations since then have no stack")
        self._taken.put(self._snapshots.take(most_events=self._max_events, recorded=recorded))
        self._end(None)

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
                self._end(f"{what} within {self._most_s:g} s")

    @property
    def _deadline_s(self) -> float:
        return self._began_s + self._most_s

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
            self.give_way("it was stopped")

    def give_way(self, problem: str) -> None:
        """End a recording that goes on; the evidence thread reports the problem."""
        with self._lock:
            if self.waits_for_steps:
                self._end(problem)

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
