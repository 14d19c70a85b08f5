"""One window of evidence: history on, steps to warm up, a snapshot, the window's steps, a snapshot, history off."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Optional

from tidegauge.probe.evidence.recorded_window import RecordedWindow, WindowPhase
from tidegauge.probe.runtime.history import History
from tidegauge.probe.runtime.rank_snapshot import RankSnapshots

ENOUGH_STEPS = 5
"""Between the snapshots, where steps are slow: of what each step keeps, four blocks are not of the step in progress."""
_WARM_UP_SHARE = 4
"""Divisor of the time: slow steps warm up for at most a quarter of it (and at least one step)."""


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


class EvidenceWindow(RecordedWindow):
    """A window of evidence: the early snapshot without events, and the late one."""

    def __init__(
        self,
        ask: WindowAsk,
        snapshots: RankSnapshots,
        history: History,
        *,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(
            ask.evidence_id, snapshots, history, most_s=ask.most_s, max_events=ask.max_events, clock_s=clock_s
        )
        self.ask = ask
        self.step_began_us: Optional[int] = None
        """Unix time at which the step that ended at the late snapshot began; set with it."""
        self._early_step: Optional[int] = None
        self._early_s = 0.0

    def _advance(self, step: int, now_s: float, now_us: int, least_s: float) -> None:
        del now_us
        if not self._is_begun:
            self._begin(step)
        elif self._early_step is None:
            if self._warm(step, now_s):
                self._taken.put(self._snapshots.take(most_events=0))
                self._early_step, self._early_s = step, now_s
                self.phase = WindowPhase.RECORDING
        elif self._complete(step, now_s, least_s):
            self.step_began_us = self._boundary_us
            self._take_last()

    def _entries(self) -> int:
        return self._snapshots.enough_events(self.ask.max_events)

    def _warm(self, step: int, now_s: float) -> bool:
        late = now_s - self._began_s >= min(self.ask.enough_s, self.ask.most_s) / _WARM_UP_SHARE
        return step >= self.began_step + self.ask.warm_up_steps or (late and step > self.began_step)

    def _complete(self, step: int, now_s: float, least_s: float) -> bool:
        assert self._early_step is not None
        steps, apart_s = step - self._early_step, now_s - self._early_s
        is_whole = steps >= self.ask.window_steps and apart_s >= least_s
        is_enough = steps >= ENOUGH_STEPS and apart_s >= self.ask.enough_s
        return is_whole or is_enough or self._is_time_up(now_s)
