"""Step boundaries of a leak of the zoo, as the probe has them: calls of another thread, carried out in this one."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable

from tidegauge.probe.requests import RequestRefusedError

WAIT_S = 60.0


class Boundaries:
    """``call`` is for the thread that searches, ``on_step`` for the training loop."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call(self, call: Callable[[], bool]) -> bool:
        """What ``call`` returns, in the training thread. Raises ``RequestRefusedError`` if no step ends."""
        done = threading.Event()
        results: list[bool] = []

        def carry_out() -> None:
            try:
                results.append(call())
            finally:
                done.set()

        self._calls.put(carry_out)
        if not done.wait(WAIT_S):
            raise RequestRefusedError("unable", "no step ended")
        return results[0]

    def on_step(self, *, first: bool = False) -> None:
        """Carry out what is waiting. With ``first``, wait until the searching thread has asked for its first call."""
        if first:
            self._calls.get(timeout=WAIT_S)()
        while not self._calls.empty():
            self._calls.get()()

    def stand_still(self, searcher: threading.Thread) -> None:
        """Carry out all that ``searcher`` asks for, before the next step."""
        while searcher.is_alive():
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=0.01)()
