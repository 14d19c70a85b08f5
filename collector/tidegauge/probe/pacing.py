"""Paces work in a background thread: in slices so short that the training thread never waits long for the GIL.

Every call of torch releases the GIL and takes it again. A thread that computes meanwhile hands it over only every
5 ms (``sys.getswitchinterval``), a thousand times a step: so ours releases it by itself, long before.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

SLICE_S = 0.0003
REST_S = 0.001
"""Between two slices: a quarter of one core at most, for less than a second."""


class StoppedError(Exception):
    """The work is cancelled."""


class Pacer:
    """Call ``pace()`` between small pieces of work, ``rest()`` after a large one. Both raise ``StoppedError``."""

    def __init__(
        self,
        stopped: Callable[[], bool] = lambda: False,
        *,
        clock_s: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._stopped = stopped
        self._clock_s = clock_s
        self._sleep = sleep
        self._began_s = clock_s()

    def pace(self) -> None:
        """Rest if the slice is used up."""
        if self._clock_s() - self._began_s >= SLICE_S:
            self.rest()

    def rest(self) -> None:
        """Let others run for a moment."""
        if self._stopped():
            raise StoppedError
        self._sleep(REST_S)
        self._began_s = self._clock_s()


def start_thread(run: Callable[[], None]) -> threading.Thread:
    """Have ``run`` done in a daemon thread that takes no signals: they must go to threads of the job, which may be
    waiting for just that (sigwait)."""

    def masked() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        run()

    thread = threading.Thread(target=masked, name="tidegauge-evidence", daemon=True)
    thread.start()
    return thread
