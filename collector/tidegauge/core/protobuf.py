"""Protobuf's wire format (protobuf.dev/programming-guides/encoding) without generated code: the few fields that are
needed are read and written by their numbers, and unknown ones are passed over. Readers raise ``ValueError`` for bytes
that are no message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Union

MAX_VARINT_BYTES = 10
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
"""Wire types."""


def messages(message: bytes, number: int) -> Iterator[bytes]:
    """Every value of a field that has a length: a text, or a message of its own."""
    return (value for value in _values(message, number) if isinstance(value, bytes))


def texts(message: bytes, number: int) -> Iterator[str]:
    return (value.decode() for value in messages(message, number))


def text(message: bytes, number: int) -> str:
    """Value of a single field; the last counts, as in every reader of protobuf."""
    return ([*texts(message, number)] or [""])[-1]


def integer(message: bytes, number: int) -> int:
    """The same of a number."""
    return ([value for value in _values(message, number) if isinstance(value, int)] or [0])[-1]


def text_map(message: bytes, number: int) -> Mapping[str, str]:
    """A ``map<string, string>``: a message for each entry."""
    return {text(entry, 1): text(entry, 2) for entry in messages(message, number)}


def field(number: int, value: Union[bytes, str, int]) -> bytes:
    """One field. A number may not be negative."""
    if isinstance(value, int):
        return _encoded(number << 3 | _VARINT) + _encoded(value)
    content = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | _LENGTH) + _encoded(len(content)) + content


def fields(number: int, values: Iterable[Union[bytes, str]]) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def _values(message: bytes, number: int) -> Iterator[Union[bytes, int]]:
    at = 0
    while at < len(message):
        key, at = _decoded(message, at)
        found, form = key >> 3, key & 7
        if form == _VARINT:
            value, at = _decoded(message, at)
            if found == number:
                yield value
            continue
        if form == _LENGTH:
            length, at = _decoded(message, at)
        elif form in (_EIGHT_BYTES, _FOUR_BYTES):
            length = 8 if form == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {form}")
        if length > len(message) - at:
            raise ValueError(f"a field of {length} bytes with only {len(message) - at} left")
        if found == number and form == _LENGTH:
            yield message[at : at + length]
        at += length


def _decoded(message: bytes, at: int) -> tuple[int, int]:
    """A number, and where it ends."""
    number = 0
    for index, byte in enumerate(message[at : at + MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, at + index + 1
    raise ValueError("a number without an end")


def _encoded(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
