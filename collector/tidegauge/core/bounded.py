"""Makes values from elsewhere safe to calculate with and to show: numbers in range, texts printable and short."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast

from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.text import one_line

T = TypeVar("T")

LARGEST = 1 << 60
"""Beyond all bytes, steps and counts."""


def bounded(value: T, *, least: int = 0) -> T:
    """``value`` with every text a printable line of at most ``MAX_TEXT_CHARS`` characters.

    Raises ``ValueError`` for a number below ``least``, out of range, or NaN.
    """
    if value is None or isinstance(value, (bool, Enum)):
        return value
    if isinstance(value, str):
        return cast(T, one_line(value, MAX_TEXT_CHARS))
    if isinstance(value, (int, float)):
        # Not by math.isfinite, for which an int of hundreds of digits is too large; NaN is not between any two numbers.
        if not least <= value <= LARGEST:
            raise ValueError("a number in it is out of range")
        return value
    if isinstance(value, tuple):
        parts: list[Any] = [bounded(part, least=least) for part in value]
        return cast(T, type(value)(*parts) if hasattr(value, "_fields") else tuple(parts))
    if isinstance(value, Mapping):
        return cast(T, {name: bounded(part, least=least) for name, part in value.items()})
    assert dataclasses.is_dataclass(value)
    assert not isinstance(value, type)
    changes = {field.name: bounded(getattr(value, field.name), least=least) for field in dataclasses.fields(value)}
    return cast(T, dataclasses.replace(value, **changes))
