"""Formats quantities for people, in one place, so that command line, report and messages agree.

Base units inside, converted only here.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tidegauge.core.verdicts import Band

IEC_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
"""Powers of 1024, from 0."""

_DURATIONS = (("s", 1.0, 90.0), ("min", 60.0, 90.0), ("h", 3600.0, 36.0), ("days", 86400.0, 730.0))
"""Name, seconds, and how many of it are still said in this unit: 90 s reads better than 1.5 min, 36 h than 1.5 days."""

_YEAR_S = 365.25 * 86400
_LENGTHS_S = {**{name: length_s for name, length_s, _ in _DURATIONS}, "years": _YEAR_S}
_MAX_YEARS = 100.0
"""Beyond this a figure is noise: "over 100 years"."""


MAX_DECIMALS = 3
"""More digits than a person reads; counts that differ by a hundredth are told apart by two."""


def format_bytes(count: float, decimals: int = 1) -> str:
    """Bytes with an IEC unit and one decimal, as ``nvidia-smi`` and PyTorch's own messages count: ``12.0 MiB``.

    Whole bytes below 1 KiB. Negative counts keep their sign. Of what no machine has it is said so: ``over 1024 EiB``.
    """
    sign = "-" if count < 0 else ""
    amount = abs(count)
    if amount < 1023.5:
        return f"{sign if round(amount) else ''}{amount:.0f} B"
    exponent = 0
    while (amount >= 1023.95 or exponent == 0) and exponent < len(IEC_UNITS) - 1:  # 1023.95 would be written 1024.0
        amount /= 1024
        exponent += 1
    if amount >= 1023.95:
        return f"{'under -' if sign else 'over '}1024 EiB"
    return f"{sign}{amount:.{decimals}f} {IEC_UNITS[exponent]}"


def format_bytes_apart(first: float, second: float) -> tuple[str, str]:
    """Both with as many decimals as it takes to tell them apart: ``12.34 GiB`` and ``12.29 GiB``; three at most."""
    for decimals in range(1, MAX_DECIMALS + 1):
        pair = format_bytes(first, decimals), format_bytes(second, decimals)
        if first == second or pair[0] != pair[1]:
            break
    return pair


def format_count(count: int, thing: str) -> str:
    """A count with its noun, whose plural English makes with an s: ``1 job``, ``1,024 ranks``."""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def format_duration(seconds: float) -> str:
    """A duration in the one unit that a person would use: ``42 s``, ``14 min``, ``5.3 h``, ``12 days``.

    Two significant digits are enough for what is always an estimate. Infinite is ``never``.
    Raises ``ValueError`` for a negative duration or NaN.
    """
    if math.isnan(seconds) or seconds < 0:
        raise ValueError(f"a duration cannot be {seconds}")
    if math.isinf(seconds):
        return "never"
    for name, length_s, most in _DURATIONS:
        if seconds / length_s < most - 0.5:
            return f"{_short(seconds / length_s)} {name}"
    years = seconds / _YEAR_S
    return f"{_short(years)} years" if years < _MAX_YEARS else f"over {_MAX_YEARS:.0f} years"


def format_last(seconds: float) -> str:
    """A duration after "the last": ``7 days``, and ``100 years`` of any longer one, as nothing is older."""
    return format_duration(seconds).removeprefix("over ")


def format_band(band: Band, form: Callable[[float], str] = format_duration) -> str:
    """The range of an estimate, its unit said once where both ends share it.

    ``14\u201322 min``, ``1.0\u20131.7 h``, ``12 min \u2013 3 h``; ``14 min`` where the ends read alike, ``14 min or
    more`` without an upper end. ``form`` writes one end as "number unit".
    """
    low = form(band.low)
    if math.isinf(band.high):
        return low if math.isinf(band.low) else f"{low} or more"
    high = form(band.high)
    if low == high:
        return low
    low_number, _, unit = low.partition(" ")
    high_number, _, high_unit = high.partition(" ")
    if unit and unit == high_unit:
        return f"{low_number}\u2013{high}"
    length_s = _LENGTHS_S.get(high_unit) if form is format_duration else None
    if length_s is None or band.low < length_s / 2:
        return f"{low} \u2013 {high}"
    low_number = f"{band.low / length_s:.1f}" if "." in high_number else _short(band.low / length_s)
    return high if low_number == high_number else f"{low_number}\u2013{high}"


def _short(number: float) -> str:
    """The number with one decimal below 10 unless that is a zero, else without."""
    if number >= 9.95:
        return f"{number:.0f}"
    text = f"{number:.1f}"
    return text[:-2] if text.endswith(".0") else text
