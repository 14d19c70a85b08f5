"""Resident memory of processes that every poll reads: keeps their /proc/PID/statm open.

Opening, reading and parsing ``stat`` takes 13 us per rank and poll, reading an open ``statm`` one. An open file in
/proc stays with the process that had the pid when it was opened, whoever has that pid later.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tidegauge.core.ids import ProcessId

OUR_FILES_DIVISOR = 4
"""Share of this process's descriptors for them, as a divisor: rings need the others. Further processes are read by
``stat``."""
FORGET_S = 60.0
"""Time without a read after which a file is closed."""


class ResidentPages(NamedTuple):
    """Two figures of /proc/PID/statm, see proc_pid_statm(5)."""

    resident: int
    shared: int
    """Of those: pages of files and of shared memory."""


def parse_statm(text: bytes) -> ResidentPages | None:
    """``None`` for what is no statm, and for a process without memory."""
    try:
        _, resident, shared, *_ = map(int, text.split())
    except ValueError:
        return None
    return ResidentPages(resident, shared) if resident else None


class _Statm:
    __slots__ = ("fd", "read_s")

    def __init__(self, fd: int, read_s: float) -> None:
        self.fd = fd
        self.read_s = read_s


class OpenStatms:
    """Reads the open ``statm`` of the processes given to ``keep``, and of no others. For any thread."""

    def __init__(self, root: str, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """``root``: where proc is mounted."""
        self._root = root
        self._monotonic_s = monotonic_s
        self._most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OUR_FILES_DIVISOR
        self._open: dict[ProcessId, _Statm] = {}
        self._sweep_s = monotonic_s() + FORGET_S
        self._lock = threading.Lock()
        """A descriptor must not be closed, and become another file, while somebody reads it."""

    def pages(self, process: ProcessId) -> ResidentPages | None:
        """``None`` where only ``stat`` can tell: it is not kept, has ended, or is about to.

        A process without memory of its own (a zombie, and one whose first thread has ended) has 0 there.
        """
        with self._lock:
            statm = self._open.get(process)
            if statm is None:
                return None
            statm.read_s = self._monotonic_s()
            try:
                pages = parse_statm(os.pread(statm.fd, 128, 0))
            except OSError:
                pages = None
            if pages is None:
                self._forget(process)
            return pages

    def keep(self, process: ProcessId, is_it: Callable[[], bool]) -> None:
        """Keep the ``statm`` of ``process`` open for ``pages``, if it can be. ``is_it`` checks that the pid is still
        this process's: called when the file is open, so that what was opened is its."""
        now_s = self._monotonic_s()
        with self._lock:
            if now_s >= self._sweep_s:
                self._sweep(now_s)
            if process in self._open or len(self._open) >= self._most:
                return
            with suppress(OSError):
                statm = os.open(f"{self._root}/{process.pid}/statm", os.O_RDONLY | os.O_CLOEXEC)
                self._open[process] = _Statm(statm, now_s)
                if not is_it():
                    self._forget(process)

    def _forget(self, process: ProcessId) -> None:
        os.close(self._open.pop(process).fd)

    def _sweep(self, now_s: float) -> None:
        self._sweep_s = now_s + FORGET_S
        for process in [process for process, statm in self._open.items() if now_s - statm.read_s > FORGET_S]:
            self._forget(process)

    def __del__(self) -> None:
        for process in list(self._open):
            self._forget(process)
