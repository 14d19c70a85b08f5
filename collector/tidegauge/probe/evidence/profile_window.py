"""One window of a memory profile: history on at a step boundary, some whole steps, one snapshot with all their events,
history off."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, Optional

from tidegauge.probe.evidence.recorded_window import RecordedWindow, WindowPhase
from tidegauge.probe.runtime.history import History
from tidegauge.probe.runtime.rank_snapshot import RankSnapshots

EVENTS_OF_ALLOCATION = 3
"""An allocation, and its two of being freed."""
MAX_EVENTS_OF_STEPS = 11_000
"""Of several steps in one snapshot: at 3.5 us an event it stops training for 38 ms, and reading the model's tensors for
up to 10 ms more. A single step may fill the ring."""


class ProfileAsk(NamedTuple):
    """The parameters of the command ``profile``."""

    recording_id: str
    reason: str
    steps: int = 2
    """Whole steps."""
    most_s: float = 120.0
    """From the command to the end of recording."""
    max_events: int = 30_000
    """Size of the ring: the snapshot lists each event in 3 to 4 us (H200's host)."""


class ProfileWindow(RecordedWindow):
    """A window of a memory profile. Whoever opens it sets what is called then."""

    read_before: Callable[[], None]
    """Reads the job's tensors at the first boundary. Raises nothing, as the next two."""
    read_after: Callable[[], None]
    """Reads them at the last."""
    over: Callable[[], None]
    """Called when recording ends, however it does and in whatever thread, if the window was opened."""

    def __init__(
        self,
        ask: ProfileAsk,
        snapshots: RankSnapshots,
        history: History,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            ask.recording_id, snapshots, history, most_s=ask.most_s, max_events=ask.max_events, clock_s=clock_s
        )
        self.ask = ask
        self.boundaries_us: list[int] = []
        """Unix times of the ends of steps; the first begins the first whole one."""
        self.ended_step = self.began_step
        self.allocations: Mapping[int, int] = {}
        """By device, how often memory was allocated in the steps so far."""
        self._allocations_before: Mapping[int, int] = {}

    @property
    def is_ours(self) -> bool:
        """Whether history went on for it, so that all events are its own."""
        return self._ours

    def _advance(self, step: int, now_s: float, now_us: int, least_s: float) -> None:
        del least_s  # a call of the model is a step here
        allocations = self._snapshots.allocations()
        if not self.boundaries_us:
            self._allocations_before = allocations
            self.read_before()
            self._begin(step)
            self.phase = WindowPhase.RECORDING
        before, self.allocations = self.allocations, self._since_beginning(allocations)
        steps = len(self.boundaries_us)
        self.boundaries_us.append(now_us)
        self.ended_step = step
        is_full = self._is_full(before)
        if steps and (steps >= self.ask.steps or self._is_time_up(now_s) or is_full):
            if steps < self.ask.steps and is_full:
                self._note_few_steps(steps)
            self.read_after()
            self._take_last(recorded=self._events(self.allocations) if self._ours else None)

    def _end(self, problem: Optional[str]) -> None:
        if self._is_open:
            self.over()
        super()._end(problem)

    def _since_beginning(self, allocations: Mapping[int, int]) -> dict[int, int]:
        return {device: count - self._allocations_before.get(device, 0) for device, count in allocations.items()}

    def _is_full(self, before: Mapping[int, int]) -> bool:
        """Whether another step like the last would be too much for the ring, and for one snapshot."""
        events = 2 * self._events(self.allocations) - self._events(before)
        return events > min(self.ask.max_events, MAX_EVENTS_OF_STEPS)

    def _note_few_steps(self, steps: int) -> None:
        recorded = "one step was" if steps == 1 else f"{steps} steps were"
        each = self._events(self.allocations) // steps
        self._note(
            f"{recorded} recorded, not {self.ask.steps}: a step has some {each:,} allocator events, and a snapshot of "
            "more would stall training"
        )

    def _events(self, allocations: Mapping[int, int]) -> int:
        return EVENTS_OF_ALLOCATION * sum(allocations.values())
