"""The messages of the protocol between nodes, made, described and recorded from the annotations of their fields.

    PYTHONPATH=collector:tests .venv/bin/python tests/protocol_forms.py

records the messages of this version in ``tests/data/protocol``.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import zlib
from collections import abc
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from tidegauge.protocol.coding import HEADER, MAGIC, encode
from tidegauge.protocol.messages import MESSAGES, VERSION, ProtocolVersion

RECORDED = Path(__file__).parent / "data" / "protocol"
Forms = dict[str, dict[str, str] | list[str]]
"""By the name of a type: its fields, each as ``type`` or ``type = default``, or the values of an enum's members."""


def taken_apart(annotation: Any) -> tuple[str, tuple[Any, ...]]:
    """What kind of type it is, and the types inside. Raises ``TypeError`` for what no message may hold."""
    annotation = getattr(annotation, "__supertype__", annotation)
    origin, parts = get_origin(annotation), get_args(annotation)
    if type(None) in parts:
        return "optional", tuple(part for part in parts if part is not type(None))
    if origin is tuple:
        return ("list", parts[:1]) if parts[-1] is Ellipsis else ("row", parts)
    if origin is frozenset:
        return "set", parts
    if origin is abc.Mapping:
        return "mapping", parts
    if annotation in (Any, str, int, float, bool):
        return "scalar", (annotation,)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "enum", (annotation,)
    if dataclasses.is_dataclass(annotation) or hasattr(annotation, "_fields"):
        return "record", (annotation,)
    raise TypeError(f"no message may hold a {annotation}")


def full(annotation: Any, numbers: Iterator[int] | None = None) -> Any:
    """A value with every field set, none to its default; lists have one item."""
    numbers = itertools.count(1) if numbers is None else numbers
    kind, parts = taken_apart(annotation)
    if kind == "record":
        made = parts[0](**{name: full(part, numbers) for name, part in get_type_hints(parts[0]).items()})
        # Of the types here only a bool may be set to its default by that.
        usual = {name: words for name, words in _defaults(parts[0]).items() if words == " = True"}
        return made._replace(**dict.fromkeys(usual, False)) if hasattr(made, "_fields") else made
    if kind == "enum":
        return next(iter(parts[0]))
    if kind == "scalar":
        number = next(numbers)
        made = {str: f"text {number}", int: number, float: number + 0.5, bool: True, Any: [number, None, 0.5]}
        return made[parts[0]]
    values = tuple(full(part, numbers) for part in parts)
    if kind == "mapping":
        return {values[0]: values[1]}
    return values[0] if kind == "optional" else frozenset(values) if kind == "set" else values


def described() -> Forms:
    """All types of the messages of this version."""
    found: Forms = {}
    todo: list[Any] = list(MESSAGES.values())
    while todo:
        kind, parts = taken_apart(todo.pop())
        if kind == "enum":
            found[parts[0].__name__] = sorted(str(member.value) for member in parts[0])
        elif kind == "record" and parts[0].__name__ not in found:
            hints = get_type_hints(parts[0])
            defaults = _defaults(parts[0])
            found[parts[0].__name__] = {name: _words(part) + defaults.get(name, "") for name, part in hints.items()}
            todo += hints.values()
        elif kind not in ("record", "scalar"):
            todo += parts
    return dict(sorted(found.items()))


def _words(annotation: Any) -> str:
    kind, parts = taken_apart(annotation)
    if kind in ("scalar", "enum", "record"):
        return str(getattr(parts[0], "__name__", parts[0]))
    return f"{kind} of {' and '.join(map(_words, parts))}"


def _defaults(form: Any) -> dict[str, str]:
    if hasattr(form, "_fields"):
        return {name: f" = {value!r}" for name, value in form._field_defaults.items()}
    missing = dataclasses.MISSING
    return {
        field.name: f" = {field.default if field.default_factory is missing else field.default_factory()!r}"
        for field in dataclasses.fields(form)
        if field.default is not missing or field.default_factory is not missing
    }


def packed(name: str, raw: Any, version: ProtocolVersion = VERSION) -> bytes:
    """A message as another version may send it: whatever it says, under whatever name."""
    text = json.dumps(raw).encode()
    return HEADER.pack(MAGIC, *version, name.encode(), len(text)) + zlib.compress(text, 1)


def unpacked(data: bytes) -> tuple[ProtocolVersion, str, Any]:
    _, major, minor, name, _ = HEADER.unpack_from(data)
    return ProtocolVersion(major, minor), name.rstrip(b"\0").decode(), json.loads(zlib.decompress(data[HEADER.size :]))


def main() -> None:
    folder = RECORDED / str(VERSION)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "forms.json").write_text(json.dumps(described(), indent=1) + "\n")
    for name, form in MESSAGES.items():
        (folder / f"{name}.bin").write_bytes(encode(full(form)))


if __name__ == "__main__":
    main()
