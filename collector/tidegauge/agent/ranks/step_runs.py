"""By what a device of a rank is judged: its training steps, or the time where these are rare. Pure."""

from __future__ import annotations

from tidegauge.core.samples import TICKS_ALONE_S

RARE_STEP_S = 120.0
"""Steps less than this apart are a run; training of the largest models is. Where they are rarer (reinforcement
learning, evaluations of a whole data set), what happens between them matters more. Of slow but regular steps ticks say
little: a batch stays as large as it is for many of them, and a few batches of chance look like growth."""


class StepRuns:
    """Steps are what counts while they come in runs. Time counts from ``TICKS_ALONE_S`` after the last run on, until a
    run has lasted as long: a burst of steps after each rollout changes nothing."""

    def __init__(self, first_s: float) -> None:
        """``first_s``: the time of the first record."""
        self.by_time = False
        self._last_step_s: float | None = None
        self._run_began_s = self._run_ended_s = first_s

    @property
    def stepped(self) -> bool:
        """Whether there was a step at all."""
        return self._last_step_s is not None

    def record(self, now_s: float) -> None:
        """Any record, before ``step`` where it is one."""
        if now_s - self._run_ended_s >= TICKS_ALONE_S:
            self.by_time = True

    def step(self, now_s: float) -> None:
        """A step ended. The first one begins the training, whatever went before."""
        if self._last_step_s is None:
            self.by_time = False
            self._run_began_s = self._run_ended_s = now_s
        elif self.is_rare(now_s):
            self._run_began_s = now_s
        else:
            self._run_ended_s = now_s
            if now_s - self._run_began_s >= TICKS_ALONE_S:
                self.by_time = False
        self._last_step_s = now_s

    def is_rare(self, now_s: float) -> bool:
        """Whether a step that ended now would not be in a run with the one before; true before the first."""
        return self._last_step_s is None or now_s - self._last_step_s >= RARE_STEP_S
