"""Ends a command and all that descends from it: asked first, by force when its grace is over."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection

from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat
from tidegauge.osproc.processes import send_signal

FIRST_LOOK_S, LONGEST_LOOK_S = 0.02, 0.5
"""Between two looks at who is left: a look costs about 30 us for each process of the machine."""


class Ending:
    """One end. ``family`` names the descendants that are left, the command among them; who is gone is not signalled.

    The command is asked alone at first: a launcher like ``torchrun`` ends its ranks itself, and a rank that saves its
    state when it is asked to end should not be asked twice, nor lose its data loaders meanwhile. What the command
    leaves behind, or has not ended after half of the grace, is asked too.
    """

    def __init__(
        self,
        command: ProcessId,
        family: Callable[[], Collection[ProcStat]],
        *,
        grace_s: float,
        now_s: float,
        send: Callable[[ProcessId, int], bool] = send_signal,
    ) -> None:
        self._command = command
        self._family = family
        self._send = send
        self._ask_all_s = now_s + grace_s / 2
        self._force_s = now_s + grace_s
        self._asked: set[ProcessId] = set()
        self._look_s = FIRST_LOOK_S
        self._next_look_s = now_s
        self._ask(command)

    @property
    def next_look_s(self) -> float:
        """When ``look`` is due again, on the clock of ``now_s``."""
        return self._next_look_s

    def look(self, now_s: float) -> Collection[ProcStat]:
        """Signal whose turn it is; returns who is left."""
        left = [stat for stat in self._family() if not stat.ended]
        everybody = now_s >= self._ask_all_s or all(stat.process != self._command for stat in left)
        for stat in left:
            if now_s >= self._force_s:
                self._send(stat.process, signal.SIGKILL)
            elif everybody and stat.process not in self._asked:
                self._ask(stat.process)
        due_s = [due_s for due_s in (self._ask_all_s, self._force_s) if due_s > now_s]
        self._next_look_s = min([now_s + self._look_s, *due_s])
        self._look_s = min(2 * self._look_s, LONGEST_LOOK_S)
        return left

    def hurry(self, now_s: float) -> None:
        """No more grace."""
        self._force_s = self._next_look_s = now_s

    def _ask(self, process: ProcessId) -> None:
        self._asked.add(process)
        self._send(process, signal.SIGTERM)
        self._send(process, signal.SIGCONT)  # one that is stopped would not hear it
