"""Runs commands in the training thread at its next step boundary, because they are unsafe anywhere else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tidegauge.probe.faults import describe
from tidegauge.probe.requests import RequestRefusedError

STEP_WAIT_S = 10.0
LOOK_WAIT_S = 0.2
"""For callers that retry at once: the end of watching waits only half a second for their thread."""
T = TypeVar("T")


class BoundaryCalls:
    """Hands calls from the helper thread to the training thread, which alone knows whether it captures a CUDA graph.

    ``at_next_step`` schedules a function for the next boundary; ``capturing`` is called there.
    """

    def __init__(
        self,
        at_next_step: Callable[[Callable[[], None]], None],
        capturing: Callable[[], bool],
        *,
        wait_s: float = STEP_WAIT_S,
    ) -> None:
        self._at_next_step = at_next_step
        self._capturing = capturing
        self._wait_s = wait_s

    def call(self, call: Callable[[], T], *, now: bool) -> T:
        """Run ``call`` at the next boundary, return its result; ``now``: at once in this thread, for jobs that make no
        steps.

        Raises ``RequestRefusedError`` where that fails; from the training thread, that includes what ``call`` raised.
        """
        if now:
            return call()
        done = threading.Event()
        results: list[T] = []
        refusals: list[RequestRefusedError] = []
        given_up = begun = False
        beginning = threading.Lock()

        def at_step() -> None:
            nonlocal begun
            with beginning:
                if given_up:
                    return
                begun = True
            try:
                if self._capturing():
                    refusals.append(RequestRefusedError("busy", "a CUDA graph is being captured; retry later"))
                else:
                    results.append(call())
            except RequestRefusedError as refused:
                refusals.append(refused.with_traceback(None))  # whose frames would keep the step's variables
            except Exception as error:
                refusals.append(RequestRefusedError("unable", describe(error)))
            finally:
                done.set()

        self._at_next_step(at_step)
        if not done.wait(self._wait_s):
            with beginning:
                given_up = not begun
            if given_up:
                raise RequestRefusedError(
                    "late", f"no training step ended within {self._wait_s:g} s; {{'now': true}} does not wait"
                )
            done.wait()
        if refusals:
            raise refusals[0]
        return results[0]
