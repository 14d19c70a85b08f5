"""Times as commands take and show them: ``--since 7d`` in, the reader's own clock out."""

from __future__ import annotations

import argparse
import re
import time

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def ago(text: str) -> float:
    """``7d`` as the seconds in it, for argparse. Raises ``argparse.ArgumentTypeError``."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text, re.ASCII)
    span_s = None if match is None else int(match[1]) * _UNITS_S[match[2]]
    if not span_s:
        what = "not a" if span_s is None else "an empty"
        raise argparse.ArgumentTypeError(f"{text!r} is {what} time span; examples: 90s, 30m, 36h, 7d, 2w")
    return span_s


def since_unix_s(span_s: float) -> int:
    """The moment so long ago, as the API takes it."""
    return max(int(time.time() - span_s), 0)


def day(unix_s: float) -> str:
    """``2026-11-21``, where the reader is."""
    return time.strftime("%Y-%m-%d", time.localtime(unix_s))


def clock(unix_s: float) -> str:
    """``06:12:03``, where the reader is."""
    return time.strftime("%H:%M:%S", time.localtime(unix_s))


def moment(unix_s: float) -> str:
    """``2026-11-21 06:12:03``, where the reader is."""
    return f"{day(unix_s)} {clock(unix_s)}"
