"""Frozen values as JSON: the one place that decides how the HTTP API writes them, and reads what commands need back.

Field names become keys, in the order in which the value declares them, so that answers are stable. Enums are their
value. What JSON has no word for, infinity and NaN, becomes ``null``: an unknown, as everywhere.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union

from tidegauge.core.ids import RankIdentity
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict

Wire = Union[None, bool, int, float, str, list["Wire"], dict[str, "Wire"]]


def to_wire(value: object) -> Wire:
    """``value`` in lists, dicts and plain scalars. Raises ``TypeError`` for anything that is not a value of ours."""
    if isinstance(value, Enum):
        return to_wire(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_wire(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: to_wire(part) for name, part in zip(value._fields, value)}
    if isinstance(value, Mapping):
        return {str(to_wire(name)): to_wire(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_wire(part) for part in value]
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def to_json(value: object) -> bytes:
    """``to_wire`` as UTF-8 text, strict JSON."""
    return json.dumps(to_wire(value), allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


_BANDS = ("bytes_per_step", "bytes_per_second", "steps_to_oom", "seconds_to_oom")


def band_from_wire(raw: Mapping[str, Any] | None) -> Band | None:
    """A band that ``to_wire`` wrote; an end without a number was infinite."""
    if raw is None:
        return None
    return Band(*(float("inf") if raw[name] is None else float(raw[name]) for name in Band._fields))


def verdict_from_wire(raw: Mapping[str, Any]) -> Verdict:
    """A verdict that ``to_wire`` wrote."""
    bands = {name: band_from_wire(raw[name]) for name in _BANDS}
    return Verdict(**{**raw, **bands})._replace(
        state=LeakState(raw["state"]),
        severity=None if raw["severity"] is None else Severity(raw["severity"]),
        signal=None if raw["signal"] is None else Signal(raw["signal"]),
    )


def identity_from_wire(raw: Mapping[str, Any]) -> RankIdentity:
    """An identity that ``to_wire`` wrote."""
    return RankIdentity(**{**raw, "device_uuids": tuple(raw["device_uuids"])})
