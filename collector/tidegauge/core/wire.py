"""Frozen values as JSON: the one place that decides how the HTTP API, files and the messages between agents and the
coordinator write them, and how they are read back.

Field names become keys, in the order in which the value declares them, so that answers are stable. Enums are their
value. What JSON has no word for, infinity and NaN, becomes ``null``: an unknown, as everywhere.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
from collections import abc
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from typing import Any, Callable, Optional, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tidegauge.core.text import shared

T = TypeVar("T")
_UNIONS = (Union, getattr(types, "UnionType", Union))
"""``Optional[X]`` and, from Python 3.10 on, ``X | None``."""

_ENCODER = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
Wire = Union[None, bool, int, float, str, list["Wire"], dict[str, "Wire"]]


_PLAIN = frozenset([type(None), bool, int, str])
LARGEST_INT = (1 << 64) - 1
"""Of either sign: no address, size or time is beyond it, and no reader calculates with more."""
MAX_SHARED_CHARS = 200
MAX_TEXT_CHARS = 1 << 20
"""The longest text of ours is a memory profile, packed: 0.4 million."""
UNKNOWN_MEMBER = "UNKNOWN"
"""The member that stands for values of an enum that a later version added."""


def to_wire(value: object) -> Wire:
    """``value`` in lists, dicts and plain scalars. Raises ``TypeError`` for anything that is not a value of ours."""
    kind: Any = type(value)  # which is hashable, whatever mypy says of ``object``
    return _writer(kind)(value)


@functools.cache
def _writer(kind: type) -> Callable[[Any], Wire]:
    """Writes values of exactly this type."""
    return _scalar_writer(kind) or _container_writer(kind, to_wire)


def to_brief_wire(value: object) -> Wire:
    """The same without the fields that have their default: half the text and half the time of a report. For a reader
    whose defaults are known to be the same."""
    kind: Any = type(value)
    return _brief_writer(kind)(value)


@functools.cache
def _brief_writer(kind: type) -> Callable[[Any], Wire]:
    if kind not in _PLAIN and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")):
        return _brief_record_writer(kind)
    return _scalar_writer(kind) or _container_writer(kind, to_brief_wire)


def _scalar_writer(kind: type) -> Optional[Callable[[Any], Wire]]:
    if kind in _PLAIN:
        return _itself
    if issubclass(kind, Enum):
        return lambda value: to_wire(value.value)
    if issubclass(kind, (int, str)):
        return _itself
    if issubclass(kind, float):
        return lambda value: value if math.isfinite(value) else None
    return None


def _container_writer(kind: type, write: Callable[[object], Wire]) -> Callable[[Any], Wire]:
    if dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
        return lambda value: {name: write(getattr(value, name)) for name in names}
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: {name: write(part) for name, part in zip(value._fields, value)}
    if issubclass(kind, Mapping):
        return lambda value: {str(to_wire(name)): write(part) for name, part in value.items()}
    if issubclass(kind, (list, tuple)):
        return lambda value: [write(part) for part in value]
    if issubclass(kind, (set, frozenset)):
        return lambda value: sorted((write(part) for part in value), key=str)
    raise TypeError(f"a {kind.__name__} has no JSON form")


_NO_DEFAULT = object()


def _brief_record_writer(kind: Any) -> Callable[[Any], Wire]:
    defaults = tuple(_defaults(kind).items())

    def record(value: Any) -> Wire:
        found: dict[str, Wire] = {}
        for name, default in defaults:
            part = getattr(value, name)
            if part is not default and part != default:
                # Most fields are plain, and a call for each would double the time.
                found[name] = part if type(part) in _PLAIN else to_brief_wire(part)
        return found

    return record


def _defaults(kind: Any) -> Mapping[str, object]:
    """The default of each field, ``_NO_DEFAULT`` without one."""
    if hasattr(kind, "_fields"):
        return {name: kind._field_defaults.get(name, _NO_DEFAULT) for name in kind._fields}
    return {
        field.name: field.default_factory()
        if field.default_factory is not dataclasses.MISSING
        else _NO_DEFAULT
        if field.default is dataclasses.MISSING
        else field.default
        for field in dataclasses.fields(kind)
    }


def _itself(value: Any) -> Any:
    return value


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


def wire_json(raw: Wire, *, errors: str = "strict") -> bytes:
    """The result of ``to_wire`` as UTF-8 text, strict JSON. ``errors``, as of ``str.encode``, is for texts that UTF-8
    cannot hold."""
    return _ENCODER.encode(raw).encode(errors=errors)


def from_wire(form: type[T], raw: object) -> T:
    """The value of type ``form`` that ``to_wire`` wrote; an estimate's end without a number was infinite.

    Neighbouring versions understand each other: keys that ``form`` does not know are passed over, those that are
    missing take its default, and a member that its enum does not know is the enum's ``UNKNOWN``, else ``None`` where
    the field may be. Nothing else is put right: ``ValueError`` names the place and what belongs there.
    """
    wanted: Any = form
    try:
        return cast(T, _reader(wanted)(raw))
    except _MisfitError as error:
        raise ValueError(f"this is no {form.__name__} that this version of Tidegauge can read: {error}") from None


class _MisfitError(Exception):
    """Something else than belongs there. ``path`` is put together on the way out."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.path = ""

    def within(self, step: str) -> _MisfitError:
        self.path = step + self.path
        return self

    def __str__(self) -> str:
        words = super().__str__()
        return f"{self.path.lstrip('.')}: {words}" if self.path else words


_Read = Callable[[Any], Any]


@functools.cache
def _reader(form: Any) -> _Read:
    """Reads values of this type; made once for each type, so that the type is not looked at for each value."""
    if hasattr(form, "__supertype__"):  # a NewType, which is no class before Python 3.10
        return _reader(form.__supertype__)
    origin, parts = get_origin(form), get_args(form)
    if origin in _UNIONS:
        return _optional(next(part for part in parts if part is not type(None)), may_be_none=type(None) in parts)
    if origin is tuple:
        return _items_of(parts[0], tuple) if parts[-1] is Ellipsis else _row(parts)
    if origin is frozenset:
        return _items_of(parts[0], frozenset)
    if origin is abc.Mapping:
        return _mapping(*parts)
    if form in _SCALARS:
        return _SCALARS[form]
    if isinstance(form, type) and (dataclasses.is_dataclass(form) or hasattr(form, "_fields")):
        return _record(form)
    if isinstance(form, type) and issubclass(form, Enum):
        return _member(form)
    return _itself


def _misfit(raw: object, wanted: str) -> _MisfitError:
    # By its type alone: the words go to people who may not see the value.
    return _MisfitError(f"{'null' if raw is None else f'a {type(raw).__name__}'} where {wanted} belongs")


def _text(raw: Any) -> str:
    if type(raw) is not str:
        raise _misfit(raw, "a str")
    if len(raw) > MAX_TEXT_CHARS:
        raise _MisfitError(f"a text of more than {MAX_TEXT_CHARS:,} characters")
    # The ranks of a job say the same, in every report; long ones are all different.
    return shared(raw) if len(raw) <= MAX_SHARED_CHARS else raw


def _bool(raw: Any) -> bool:
    if type(raw) is not bool:
        raise _misfit(raw, "a bool")
    return raw


def _int(raw: Any) -> int:
    if type(raw) is not int or not -LARGEST_INT <= raw <= LARGEST_INT:
        raise _MisfitError("a number of more than 64 bits") if type(raw) is int else _misfit(raw, "an int")
    return raw


def _float(raw: Any) -> float:
    if raw is None:
        return math.inf
    if type(raw) is float:
        return raw
    if type(raw) is not int:
        raise _misfit(raw, "a float")
    return float(_int(raw))


_SCALARS: Mapping[Any, _Read] = {str: _text, bool: _bool, int: _int, float: _float}


def _optional(form: Any, *, may_be_none: bool) -> _Read:
    read = _reader(form)
    if isinstance(form, type) and issubclass(form, Enum) and not hasattr(form, UNKNOWN_MEMBER):
        members = form._value2member_map_
        return lambda raw: members.get(raw) if type(raw) is str else None if raw is None else read(raw)
    return (lambda raw: None if raw is None else read(raw)) if may_be_none else read


def _items_of(form: Any, kind: type) -> _Read:
    read = _reader(form)

    def items(raw: Any) -> Any:
        if type(raw) is not list:
            raise _misfit(raw, "a list")
        found: list[Any] = []
        try:
            for part in raw:
                found.append(read(part))  # noqa: PERF401  # its length tells where it failed
        except _MisfitError as error:
            raise error.within(f"[{len(found)}]") from None
        return kind(found)

    return items


def _row(forms: tuple[Any, ...]) -> _Read:
    reads = tuple(map(_reader, forms))

    def row(raw: Any) -> Any:
        if type(raw) is not list or len(raw) != len(reads):
            raise _misfit(raw, f"a list of {len(reads)}")
        return tuple(read(part) for read, part in zip(reads, raw))

    return row


def _mapping(key: Any, form: Any) -> _Read:
    read_key = _whole_number if key is int else _known_member(key) if _is_enum(key) else _reader(key)
    read = _reader(form)

    def mapping(raw: Any) -> Any:
        if type(raw) is not dict:
            raise _misfit(raw, "an object")
        found: dict[Any, Any] = {}
        for name, part in raw.items():
            try:
                found[read_key(name)] = read(part)
            except _MisfitError as error:  # noqa: PERF203  # the name tells where it failed
                raise error.within(f".{name[:80]}") from None
        return found

    return mapping


def _whole_number(raw: str) -> int:
    """A number as a key, which JSON has as a text only."""
    digits = raw[1:] if raw.startswith("-") else raw
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise _misfit(raw, "an int")
    return _int(int(raw))


def _is_enum(form: Any) -> bool:
    return isinstance(form, type) and issubclass(form, Enum)


def _known_member(form: type[Enum]) -> _Read:
    members = form._value2member_map_

    def member(raw: Any) -> Any:
        try:
            return members[raw]
        except (KeyError, TypeError):
            known = f"one of {', '.join(map(str, members))}"
            raise _MisfitError(f"{repr(raw)[:80]} where {known} belongs") from None

    return member


def _member(form: type[Enum]) -> _Read:
    known, unknown = _known_member(form), getattr(form, UNKNOWN_MEMBER, None)
    if unknown is None:
        return known
    members = form._value2member_map_
    return lambda raw: members.get(raw, unknown) if type(raw) is str else known(raw)


def _record(form: Any) -> _Read:
    # When the first one is read, and not here: a value may hold values of its own type.
    reads: dict[str, _Read] = {}

    def record(raw: Any) -> Any:
        if type(raw) is not dict:
            raise _misfit(raw, "an object")
        if not reads:
            reads.update({name: _reader(part) for name, part in get_type_hints(form).items()})
        found = {}
        name = ""
        try:
            for name, part in raw.items():
                read = reads.get(name)
                if read is not None:
                    found[name] = read(part)
        except _MisfitError as error:
            raise error.within(f".{name}") from None
        try:
            return form(**found)
        except (TypeError, ValueError) as error:  # a field is missing, or the form refuses a value
            raise _MisfitError(str(error)) from None

    return record
