"""Whether the signal that asks a job for a checkpoint is safe to send to this process."""

from __future__ import annotations

import signal
from typing import Optional


def signal_name(number: int) -> str:
    """The signal's name as ``kill -l`` writes it, with ``SIG``."""
    if number <= signal.SIGRTMIN:
        return signal.Signals(number).name
    return f"SIGRTMIN+{number - signal.SIGRTMIN}"


def why_not_sent(number: int) -> Optional[str]:
    """The reason not to send this process the signal now, or ``None`` when the job handles it.

    The kernel is asked, not only Python: a handler may have been set or removed in C, of which ``signal.getsignal``
    knows nothing, and the default action of these signals would end the job.
    """
    caught = _caught_signals()
    handled = callable(signal.getsignal(number)) if caught is None else bool(caught >> (number - 1) & 1)
    if handled:
        return None
    return f"the job has no handler for {signal_name(number)}: it was not sent, because it would end the job or be lost"


def _caught_signals() -> Optional[int]:
    """The process's caught signals as a mask, bit 0 for signal 1 (proc_pid_status(5), SigCgt); ``None``: no /proc."""
    try:
        with open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"SigCgt:"):
                    return int(line.split()[1], 16)
    except (OSError, ValueError):
        pass
    return None
