"""Frozen values as JSON: the one place that decides how the HTTP API writes them, and how commands read them back.

Field names become keys, in the order in which the value declares them, so that answers are stable. Enums are their
value. What JSON has no word for, infinity and NaN, becomes ``null``: an unknown, as everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import types
from collections import abc
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")
_UNIONS = (Union, getattr(types, "UnionType", Union))
"""``Optional[X]`` and, from Python 3.10 on, ``X | None``."""

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
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
    if isinstance(value, (set, frozenset)):
        return sorted((to_wire(part) for part in value), key=str)
    raise TypeError(f"a {type(value).__name__} has no JSON form")


def to_json(value: object) -> bytes:
    """``to_wire`` as UTF-8 text, strict JSON.

    A list in a mapping is written item by item, and may be an iterator: as one tree, a long answer takes ten times its
    text, and the arenas that it took for a moment stay with the process once something else has moved in.
    """
    if not isinstance(value, Mapping):
        return wire_json(to_wire(value))
    return b"".join(_written(value))


def _written(value: Mapping[Any, object]) -> Iterator[bytes]:
    before = b"{"
    for name, part in value.items():
        yield before + wire_json(str(to_wire(name))) + b":"
        if isinstance(part, (Iterator, list)) or type(part) is tuple:
            yield from _items(part)
        else:
            yield wire_json(to_wire(part))
        before = b","
    yield b"}" if value else b"{}"


def _items(items: Iterable[object]) -> Iterator[bytes]:
    before = b"["
    for item in items:
        yield before + wire_json(to_wire(item))
        before = b","
    yield b"]" if before == b"," else b"[]"


def wire_json(raw: Wire) -> bytes:
    """The result of ``to_wire`` as UTF-8 text, strict JSON."""
    return _ENCODER.encode(raw).encode()


def from_wire(form: type[T], raw: object) -> T:
    """The value of type ``form`` that ``to_wire`` wrote; an estimate's end without a number was infinite.

    Keys that ``form`` does not know are passed over and those that are missing take its default, so that commands and
    services of neighbouring versions understand each other. Raises ``ValueError`` for anything else.
    """
    try:
        return cast(T, _read(form, raw))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"this is no {form.__name__} that this version of Tidegauge can read: {error}") from error


def _read(form: Any, raw: Any) -> Any:
    if hasattr(form, "__supertype__"):  # a NewType, which is no class before Python 3.10
        return _read(form.__supertype__, raw)
    origin, parts = get_origin(form), get_args(form)
    if origin in _UNIONS:
        return None if raw is None else _read(next(part for part in parts if part is not type(None)), raw)
    if origin is tuple:
        forms = itertools.repeat(parts[0]) if parts[-1] is Ellipsis else parts
        return tuple(_read(part, each) for part, each in zip(forms, raw))
    if origin is frozenset:
        return frozenset(_read(parts[0], each) for each in raw)
    if origin is abc.Mapping:
        return {_read(parts[0], name): _read(parts[1], each) for name, each in raw.items()}
    if form is float:
        return math.inf if raw is None else float(raw)
    if isinstance(form, type) and (dataclasses.is_dataclass(form) or hasattr(form, "_fields")):
        return form(**{name: _read(part, raw[name]) for name, part in _fields(form).items() if name in raw})
    if isinstance(form, type) and issubclass(form, Enum):
        return form(raw)
    if form in (int, str, bool) and type(raw) is not form:
        raise TypeError(f"{raw!r} where a {form.__name__} belongs")
    return raw


@functools.cache
def _fields(form: type) -> Mapping[str, Any]:
    """The fields of a dataclass or a NamedTuple, with their types."""
    return get_type_hints(form)
