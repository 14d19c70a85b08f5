"""Durations in a policy file: ``300``, ``"90s"``, ``"5m"``, ``"1h30m"``; seconds in the code."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

UNITS_S = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
"""Letter and seconds, the largest first."""

PATTERN = r"^(?=\d)(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+(?:\.\d+)?s)?$"

_PARTS = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


def parse_duration(value: Any) -> float:
    """Seconds, at least 0. Raises ``ValueError`` that names the right form."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    if isinstance(value, str) and re.match(PATTERN, value):
        return sum(float(number) * UNITS_S[unit] for number, unit in _PARTS.findall(value))
    raise ValueError(f"{value!r} is not a duration: write seconds (300) or a text such as 90s, 5m, 1h30m or 2d")


def write_duration(seconds: float) -> str:
    """The shortest text that ``parse_duration`` reads as this many seconds: ``5m``, ``1h30m``, ``0s``."""
    text, left = "", seconds
    for unit, length_s in UNITS_S.items():
        count = left if unit == "s" else left // length_s
        if count:
            text += f"{count:g}{unit}"
        left -= count * length_s
    return text or "0s"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": PATTERN}],
            "examples": [300, "90s", "5m", "1h30m", "2d"],
        }
    ),
]
"""A field in seconds."""
