"""The signal that asks a job for a checkpoint: which ones may be declared, by any launcher."""

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


def _is_allowed(number: int) -> bool:
    return number in (signal.SIGUSR1, signal.SIGUSR2) or signal.SIGRTMIN <= number <= signal.SIGRTMAX
