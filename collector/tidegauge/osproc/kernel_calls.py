"""Kernel calls that the standard library lacks: adopting orphans and ending with one's parent (prctl(2)), reading
signals from a file (signalfd(2)).

Some Pythons lack ``ctypes``, and a sandbox may forbid a call: every caller must work without it.
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_SFD_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK  # SFD_CLOEXEC and SFD_NONBLOCK are these on Linux
_SIGINFO = struct.Struct("=Iiii112x")
"""``ssi_signo, ssi_errno, ssi_code, ssi_pid`` of ``struct signalfd_siginfo``; the rest is not used."""


def become_subreaper() -> None:
    """Adopt orphaned descendants, which else become children of init. Raises ``OSError``, ``ImportError``."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> None:
    """Have the kernel send this signal when the thread that started this process ends; 0: none any more. Raises
    ``OSError``, ``ImportError``."""
    _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


class Arrived(NamedTuple):
    """A signal that arrived."""

    number: int
    by_process: bool
    """Sent by somebody's kill(2), not by the kernel (a key at the terminal, a terminal that closed, a child's end)."""
    sender_pid: int
    """Of that process; 0 for one outside our pid namespace, and where the kernel sent it."""


class SignalFile:
    """A file to read signals from instead of handling them. The caller must block them (``signal.pthread_sigmask``)."""

    def __init__(self, numbers: Iterable[int]) -> None:
        """Raises ``OSError``, ``ImportError``."""
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        # glibc's sigset_t has 128 bytes, of which the kernel reads the first 8.
        mask = (ctypes.c_uint64 * 16)(sum(1 << (number - 1) for number in numbers))
        self.descriptor: int = libc.signalfd(-1, ctypes.byref(mask), _SFD_FLAGS)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def arrived(self) -> Iterator[Arrived]:
        """Signals since the last call, without waiting."""
        while True:
            try:
                data = os.read(self.descriptor, _SIGINFO.size)
            except BlockingIOError:
                return
            number, _, code, sender_pid = _SIGINFO.unpack(data)
            yield Arrived(number, by_process=code <= 0 and number != signal.SIGCHLD, sender_pid=sender_pid)

    def close(self) -> None:
        os.close(self.descriptor)
