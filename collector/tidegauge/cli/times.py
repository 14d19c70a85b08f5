"""Times in commands: time spans such as ``--since 7d``, and times of day in the local time zone."""

from __future__ import annotations

import argparse
import re
import time

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def ago(text: str) -> float:
    """The seconds of a time span such as ``7d``. Raises ``argparse.ArgumentTypeError``."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    span_s = None if match is None else int(match[1]) * _UNITS_S[match[2]]
    if not span_s:
        what = "not a" if span_s is None else "an empty"
        raise argparse.ArgumentTypeError(f"{text!r} is {what} time span; examples: 90s, 30m, 36h, 7d, 2w")
    return span_s


def since_unix_s(span_s: float) -> int:
    """The Unix time ``span_s`` ago, as the API takes it."""
    return max(int(time.time() - span_s), 0)


def day(unix_s: float) -> str:
    """The local date, ``2026-11-21``."""
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))


def clock(unix_s: float) -> str:
    """The local time of day, ``06:12:03``."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def moment(unix_s: float) -> str:
    """The local date and time, ``2026-11-21 06:12:03``."""
    return f"{day(unix_s)} {clock(unix_s)}"
