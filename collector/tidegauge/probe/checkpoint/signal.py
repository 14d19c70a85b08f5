"""The signal that asks a job for a checkpoint (``TIDEGAUGE_CHECKPOINT_SIGNAL``), and whether it is safe to send."""

from __future__ import annotations

import re
import signal
from typing import Optional

SIGNAL_VARIABLE = "TIDEGAUGE_CHECKPOINT_SIGNAL"
ALLOWED = "USR1, USR2, or a realtime signal such as RTMIN+3"
"""Nothing whose usual purpose is to end or stop a program (HUP, TERM, INT), and not WINCH, which comes by itself."""

_REALTIME = re.compile(r"(RTMIN|RTMAX)(?:([+-])(\d{1,2}))?")


def parse_signal(text: str) -> Optional[int]:
    """The number of an allowed signal, from its name with or without ``SIG`` or from its number; else ``None``."""
    word = text.strip().upper()
    word = word[3:] if word.startswith("SIG") else word
    realtime = _REALTIME.fullmatch(word)
    if word in ("USR1", "USR2"):
        number = int(signal.Signals[f"SIG{word}"])
    elif realtime is not None:
        base, sign, offset = realtime.groups()
        number = int(signal.Signals[f"SIG{base}"]) + int((sign or "+") + (offset or "0"))
    elif word.isascii() and word.isdigit() and len(word) <= 3:
        number = int(word)
    else:
        return None
    return number if _is_allowed(number) else None


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


def _is_allowed(number: int) -> bool:
    return number in (signal.SIGUSR1, signal.SIGUSR2) or signal.SIGRTMIN <= number <= signal.SIGRTMAX


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
