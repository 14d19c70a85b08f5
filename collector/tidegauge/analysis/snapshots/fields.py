"""Checked access to the untrusted values of a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from tidegauge.analysis.bad_traces import BadTraceError, shown

LARGEST = 1 << 63
"""No address, size, handle or time is as large."""


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """``value`` if it is a dict with texts as keys."""
    if not isinstance(value, dict):
        raise BadTraceError(f"{where}: should be a dict, and is {shown(value)}")
    odd = next((key for key in value if not isinstance(key, str)), None)
    if odd is not None:
        raise BadTraceError(f"{where}: has the key {shown(odd)}, which is no text")
    return value


def sequence(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadTraceError(f"{where}: should be a list, and is {shown(value)}")
    return value


def whole(fields: Mapping[str, Any], key: str, where: str) -> int:
    """A number from 0 up to what 63 bits hold."""
    value = fields.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
        raise BadTraceError(f"{where}: {key!r} should be a whole number from 0, and {_is(fields, key)}")
    return value


def text(fields: Mapping[str, Any], key: str, where: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise BadTraceError(f"{where}: {key!r} should be a text, and {_is(fields, key)}")
    return value


def pool_id(fields: Mapping[str, Any], key: str, where: str) -> Optional[tuple[int, int]]:
    """A pair such as ``segment_pool_id``; ``None`` where this torch does not write the key."""
    value = fields.get(key)
    if value is None and key not in fields:
        return None
    pair = value if isinstance(value, (tuple, list)) else ()
    if len(pair) != 2 or not all(type(part) is int and 0 <= part < LARGEST for part in pair):
        raise BadTraceError(f"{where}: {key!r} should be a pair of whole numbers, and {_is(fields, key)}")
    return (pair[0], pair[1])


def _is(fields: Mapping[str, Any], key: str) -> str:
    return f"is {shown(fields[key])}" if key in fields else "is missing"
