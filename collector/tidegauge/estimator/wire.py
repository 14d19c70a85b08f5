"""Encodes an estimate as JSON and decodes it: from the interpreter with the user's torch to the command's.

The keys are the names of ``results``. Source-compatible with Python 3.9.
"""

from __future__ import annotations

import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from tidegauge.estimator.results import Estimate


def to_json(value: Any) -> Any:
    """Dataclasses and named tuples as objects, other tuples as lists, enums as their values."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if hasattr(value, "_fields"):
        return {name: to_json(getattr(value, name)) for name in value._fields}
    if isinstance(value, (tuple, list)):
        return [to_json(part) for part in value]
    return value


def read_estimate(data: dict[str, Any]) -> Estimate:
    """The inverse of ``to_json``. Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what is no estimate."""
    return typing.cast(Estimate, _read(Estimate, data))


def _read(kind: Any, data: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return tuple(_read(typing.get_args(kind)[0], part) for part in data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if is_dataclass(kind) or hasattr(kind, "_fields"):
        return kind(**{name: _read(of, data[name]) for name, of in typing.get_type_hints(kind).items()})
    return data
