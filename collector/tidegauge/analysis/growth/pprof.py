"""Exports bytes and blocks by stack as a pprof profile: a gzipped protobuf of five messages, encoded by hand.

The messages and field numbers are those of ``profile.proto`` in https://github.com/google/pprof.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Optional

from tidegauge.analysis.growth.flame_graphs import MAX_NAME_CHARS, NO_STACK
from tidegauge.analysis.snapshots.live_stacks import Lines
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.text import one_line

SampleTypes = Sequence[tuple[str, str]]
"""Type and unit of each value: ``("inuse_space", "bytes")``."""

_SAMPLE_TYPE, _SAMPLE, _LOCATION, _FUNCTION, _STRINGS, _TIME, _PERIOD_TYPE, _PERIOD, _COMMENT, _DEFAULT = (
    1, 2, 4, 5, 6, 9, 11, 12, 13, 14,
)  # fmt: skip
"""Fields of ``Profile``."""
_NUMBER, _BYTES = 0, 2
"""Wire types."""


def pprof(
    samples: Mapping[Lines, Sequence[int]], types: SampleTypes, *, comment: str, unix_s: Optional[float] = None
) -> bytes:
    """A profile whose samples have a value for each of ``types``; the first one is what pprof shows."""
    return gzip.compress(_Profile(types, comment, unix_s).encoded(samples), mtime=0)


class _Profile:
    def __init__(self, types: SampleTypes, comment: str, unix_s: Optional[float]) -> None:
        self._strings = {"": 0}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[CodeLine, int] = {}
        self._head = b"".join(_message(_SAMPLE_TYPE, self._value_type(name, unit)) for name, unit in types)
        self._head += _message(_PERIOD_TYPE, self._value_type(*types[0])) + _field(_PERIOD, 1)
        self._head += _field(_COMMENT, self._string(comment)) + _field(_DEFAULT, self._string(types[0][0]))
        self._head += _field(_TIME, round(unix_s * 1e9) if unix_s is not None else 0)

    def encoded(self, samples: Mapping[Lines, Sequence[int]]) -> bytes:
        no_stack = (CodeLine("", 0, NO_STACK),)
        parts = [self._head]
        for stack, values in samples.items():
            places = [self._locations.setdefault(frame, len(self._locations) + 1) for frame in stack or no_stack]
            parts.append(_message(_SAMPLE, _packed(1, places) + _packed(2, values)))
        for frame, number in self._locations.items():
            line = _field(1, self._function(frame)) + _field(2, max(frame.line, 0))
            parts.append(_message(_LOCATION, _field(1, number) + _message(4, line)))
        for (name, filename), number in self._functions.items():
            named = self._string(name)
            parts.append(
                _message(
                    _FUNCTION,
                    _field(1, number) + _field(2, named) + _field(3, named) + _field(4, self._string(filename)),
                )
            )
        parts += [_message(_STRINGS, text.encode("utf-8", "replace")) for text in self._strings]
        return b"".join(parts)

    def _value_type(self, name: str, unit: str) -> bytes:
        return _field(1, self._string(name)) + _field(2, self._string(unit))

    def _function(self, frame: CodeLine) -> int:
        name = (one_line(frame.function, MAX_NAME_CHARS), one_line(frame.filename, MAX_NAME_CHARS))
        return self._functions.setdefault(name, len(self._functions) + 1)

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))


def _field(number: int, value: int) -> bytes:
    return _varint(number << 3 | _NUMBER) + _varint(value)


def _message(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _packed(number: int, values: Iterable[int]) -> bytes:
    return _message(number, b"".join(map(_varint, values)))


def _varint(value: int) -> bytes:
    """Negative numbers as protobuf has an int64: ten bytes of its two's complement."""
    rest = value & (1 << 64) - 1
    parts = bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)
