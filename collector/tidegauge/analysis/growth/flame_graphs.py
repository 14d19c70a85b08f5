"""Exports bytes by stack for flame graphs: as folded stacks, in speedscope's file format, and as a pprof profile.

Names come from the job and are never trusted: nothing of them can end a frame, a line or a text.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Optional

from tidegauge.analysis.snapshots.live_stacks import Lines, StackWeight
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.text import one_line

NO_STACK = "(no stack recorded)"
MAX_NAME_CHARS = 400
_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_EXPORTER = "tidegauge"


def folded(weights: Iterable[StackWeight]) -> Iterator[str]:
    """A line a stack, outermost frame first: ``<module> (train.py:41);step (train.py:17) 1048576``, in bytes.

    For ``flamegraph.pl``, inferno, speedscope and whatever else reads Brendan Gregg's form.
    """
    sums: dict[str, int] = {}
    for one in weights:
        if one.weight_bytes > 0:
            # ";" ends a frame there.
            frames = ";".join(frame_name(frame).replace(";", ":") for frame in reversed(one.stack)) or NO_STACK
            sums[frames] = sums.get(frames, 0) + one.weight_bytes
    for frames, weight_bytes in sums.items():
        yield f"{frames} {weight_bytes}"


def speedscope(weights: Iterable[StackWeight], *, name: str, title: str) -> str:
    """A file of https://www.speedscope.app: ``name`` is the file's, ``title`` says what its bytes are."""
    frames: dict[CodeLine, int] = {}
    no_stack = (CodeLine("", 0, NO_STACK),)
    kept = [one for one in weights if one.weight_bytes > 0]
    samples = [[frames.setdefault(frame, len(frames)) for frame in reversed(one.stack or no_stack)] for one in kept]
    whole = {
        "$schema": _SCHEMA,
        "exporter": _EXPORTER,
        "name": one_line(name, MAX_NAME_CHARS),
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": [
            {
                "type": "sampled",
                "name": title,
                "unit": "bytes",
                "startValue": 0,
                "endValue": sum(one.weight_bytes for one in kept),
                "samples": samples,
                "weights": [one.weight_bytes for one in kept],
            }
        ],
    }
    return json.dumps(whole)


def frame_name(frame: CodeLine) -> str:
    """ "step (train.py:17)", in one printable line."""
    place = f" ({frame.filename}:{frame.line})" if frame.filename else ""
    return one_line(f"{frame.function[:MAX_NAME_CHARS]}{place}", 2 * MAX_NAME_CHARS)


def _frame(frame: CodeLine) -> dict[str, object]:
    named: dict[str, object] = {"name": one_line(frame.function, MAX_NAME_CHARS)}
    if frame.filename:
        named["file"] = one_line(frame.filename, MAX_NAME_CHARS)
    if frame.line > 0:
        named["line"] = frame.line
    return named


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
    """A profile whose samples have a value for each of ``types``; the first one is what pprof shows.

    A gzipped protobuf of five messages, encoded by hand: those of ``profile.proto`` in https://github.com/google/pprof.
    """
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
