"""A message as bytes, and back.

    offset  size
    0       4     ``TGM1``: this form of the bytes
    4       2+2   the protocol's version: major, minor (big-endian, as all numbers)
    8       12    the message's type, ASCII, filled up with NUL
    20      4     the length of the text
    24            the text, compressed by zlib: strict JSON of ``core.wire``, fields by name

Nothing in the bytes names a class or a function. The sender may be anybody who got hold of the engine's token, so
sizes and counts are checked before anything is made of them.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, Generic, NoReturn, TypeVar, get_args, get_type_hints

from tidegauge.core.text import one_line
from tidegauge.core.version import __version__
from tidegauge.core.wire import from_wire, to_brief_wire, wire_json
from tidegauge.protocol.messages import (
    MAX_ITEMS,
    MAY_LACK_ITEMS,
    MESSAGES,
    VERSION,
    ProtocolVersion,
    ReportRefusal,
    understands,
)

M = TypeVar("M")

MAGIC: Final = b"TGM1"
HEADER: Final = struct.Struct("!4sHH12sI")
MAX_TEXT_BYTES: Final = 32 << 20
"""A node with 1,024 ranks and four large pieces of evidence sends half of it."""
MAX_VALUES: Final = 1 << 20
"""Values, lists and objects in a text: each costs up to a hundred bytes."""
MAX_WORDS_CHARS: Final = 400
MAX_LEFT_OUT: Final = 1024
"""Items that are left out of a message: to find out why costs some microseconds of each, whatever it is."""
MAX_LEFT_OUT_TOLD: Final = 4
LEVEL: Final = 1
"""Of zlib: a tenth of the text. More takes twice the time for a tenth less."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_NAMES: Final = {form: name for name, form in MESSAGES.items()}


class ProtocolError(ValueError):
    """A message that cannot be understood; the words are for people."""


class ReportRefusedError(ProtocolError):
    """The other side says that it does not understand what it was sent, in its words."""


@dataclass(frozen=True)
class Received(Generic[M]):
    """A message, and what of it could not be read."""

    message: M
    left_out: str | None = None
    """For people; ``None``: nothing."""


def encode(message: object) -> bytes:
    """Raises ``ProtocolError`` for a message that is too large for any receiver."""
    text = wire_json(to_brief_wire(message), errors="replace")
    if len(text) > MAX_TEXT_BYTES:
        raise ProtocolError(f"a message of {len(text)} bytes is larger than the {MAX_TEXT_BYTES} that can be sent")
    name = _NAMES[type(message)].encode()
    return HEADER.pack(MAGIC, *VERSION, name, len(text)) + zlib.compress(text, LEVEL)


def decode(form: type[M], data: object) -> Received[M]:
    """The message of type ``form`` in ``data``.

    Raises ``ReportRefusedError`` if it is a ``ReportRefusal`` instead, ``ProtocolError`` if it cannot be understood.
    """
    if not isinstance(data, bytes) or len(data) < HEADER.size or data[: len(MAGIC)] != MAGIC:
        raise ProtocolError(f"what came is no message of the protocol between nodes, of which this is {VERSION}")
    _, major, minor, raw_name, text_bytes = HEADER.unpack_from(data)
    name = one_line(raw_name.rstrip(b"\0").decode("ascii", "replace"), 12)
    found = MESSAGES.get(name)
    if found is not ReportRefusal:  # that one has stayed the same in all versions
        _check_version(ProtocolVersion(major, minor))
    if found not in (form, ReportRefusal):
        raise ProtocolError(f"{name!r} came where a message {_NAMES[form]!r} belongs")
    raw = _parsed(_text(data, text_bytes))
    if found is not form:
        raise ReportRefusedError(one_line(_read(ReportRefusal, raw).message.problem, MAX_WORDS_CHARS))
    return _read(form, raw)


def _check_version(other: ProtocolVersion) -> None:
    if not understands(other):
        first, last = max(VERSION.minor - 1, 0), VERSION.minor + 1
        older = "this one" if other > VERSION else "that one"
        raise ProtocolError(
            f"the other node speaks version {other} of the protocol between nodes, Tidegauge {__version__} here"
            f" understands {VERSION.major}.{first} to {VERSION.major}.{last}: {older} must be upgraded"
        )


def _text(data: bytes, text_bytes: int) -> bytes:
    """The text, after it was found to be as long as was said."""
    if not 0 < text_bytes <= MAX_TEXT_BYTES:
        raise ProtocolError(f"a text of {text_bytes} bytes, where 1 to {MAX_TEXT_BYTES} are allowed")
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(memoryview(data)[HEADER.size :], text_bytes)
        more = reader.decompress(reader.unconsumed_tail, 1)  # the checksum at its end, if all is well
    except zlib.error as error:
        raise ProtocolError(f"the text cannot be decompressed: {error}") from None
    if len(text) != text_bytes or more or not reader.eof or reader.unused_data:
        raise ProtocolError("the text is not as long as its header says")
    return text


def _parsed(text: bytes) -> Any:
    values = text.count(b",") + text.count(b"[") + text.count(b"{")
    if values > MAX_VALUES:
        raise ProtocolError(f"more than {MAX_VALUES} values")
    try:
        raw = json.loads(text.decode(), parse_constant=_no_number)
        if _SURROGATE.search(text):
            wire_json(raw)
    except (ValueError, RecursionError) as error:  # among the first those of UTF-8
        raise ProtocolError(f"the text is not the JSON of a message: {one_line(str(error), MAX_WORDS_CHARS)}") from None
    return raw


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number")


def _read(form: type[M], raw: Any) -> Received[M]:
    for name, most in MAX_ITEMS[form].items() if isinstance(raw, dict) else ():
        items = _count(raw, *name.split("."))
        if items > most:
            raise ProtocolError(f"{name} has {items} items, and a node can have {most}")
    try:
        return Received(from_wire(form, raw))
    except ValueError as error:
        left_out = _leave_out(form, raw)
        if not left_out:
            raise ProtocolError(one_line(str(error), MAX_WORDS_CHARS)) from None
    try:
        return Received(from_wire(form, raw), _told(left_out))
    except ValueError as error:
        raise ProtocolError(one_line(str(error), MAX_WORDS_CHARS)) from None


def _count(raw: Any, name: str, *within: str) -> int:
    """The items of a list or an object, or of those in all items of a list."""
    items = raw.get(name) if isinstance(raw, dict) else None
    if not isinstance(items, (list, dict)):
        return 0  # the reader of its type refuses it
    return sum(_count(item, *within) for item in items) if within else len(items)


def _leave_out(form: type, raw: Any) -> list[str]:
    """Takes the items out of ``raw`` that ``MAY_LACK_ITEMS`` allows and that cannot be read; says why. Raises
    ``ProtocolError`` where they are too many."""
    left_out: list[str] = []
    for name in sorted(MAY_LACK_ITEMS[form]) if isinstance(raw, dict) else ():
        items = raw.get(name)
        if not isinstance(items, list):
            continue
        kept = []
        item_form = get_args(get_type_hints(form)[name])[0]
        for number, item in enumerate(items):
            problem = _problem(item_form, item)
            if problem is None:
                kept.append(item)
            else:
                left_out.append(f"{name}[{number}]: {problem}")
                if len(left_out) > MAX_LEFT_OUT:
                    first = one_line(left_out[0], MAX_WORDS_CHARS)
                    raise ProtocolError(f"more than {MAX_LEFT_OUT} items of it cannot be read, as {first}")
        raw[name] = kept
    return left_out


def _problem(form: type, raw: Any) -> str | None:
    try:
        from_wire(form, raw)
    except ValueError as error:
        return str(error)
    return None


def _told(left_out: list[str]) -> str:
    more = len(left_out) - MAX_LEFT_OUT_TOLD
    said = "; ".join(one_line(words, MAX_WORDS_CHARS) for words in left_out[:MAX_LEFT_OUT_TOLD])
    return f"left out of its message: {said}" + (f" and {more} more" if more > 0 else "")
