"""Unpickles plain containers, strings and numbers, and refuses everything else by name.

The opcodes are scanned before anything is loaded. Overriding ``find_class`` is not enough: Python's C unpickler gives
out objects of the extension registry without asking it, allocates what a length or a memo index of a few bytes claims
(many GiB for a file of ten bytes), and ends the process when it hashes a tuple nested a million deep. What passes the
scan has none of that; it costs memory in proportion to its own length. The opcodes are those of
``pickletools.opcodes``, protocols 0 to 5.
"""

from __future__ import annotations

import gc
import io
import pickle
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Optional

from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError, shown

if TYPE_CHECKING:
    from typing_extensions import Buffer
import re

_BUFFER_BYTES = 1 << 20
_ASK = memoryview(b"Q")
"""``BINPERSID``. The scan refuses it in a file, so that none but ours is ever met."""
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
)  # fmt: skip
"""What the C unpickler raises for a damaged pickle, such as a dict as a key, or a memo entry that is not there."""


def loads(content: bytes, *, on_grown: Optional[Callable[[object], object]] = None) -> object:
    """The plain object in ``content``, built of dict, list, tuple, str, bytes, int, float, bool, None.

    Objects may be shared and may hold themselves. Raises ``RefusedPickleError`` for a pickle that wants anything
    else, ``BadTraceError`` for a damaged one. Nothing a pickle names is imported.

    ``on_grown`` is called while the object is being made, with a list that has just grown (not at each growth): it may
    take items out, so that a history of millions of entries never is there as a whole. What it is given need not be
    what it looks for, and its exceptions end it.
    """
    places = check(content)
    raw = io.BytesIO(content) if on_grown is None else _Asking(content, places)
    try:
        with _without_collection():
            return _PlainUnpickler(io.BufferedReader(raw, _BUFFER_BYTES), on_grown).load()
    except RefusedPickleError:
        raise
    except _UNPICKLING_ERRORS as error:
        raise BadTraceError(f"is no pickle, or a damaged one: {shown(str(error), 200)}") from error


class _PlainUnpickler(pickle.Unpickler):
    """Refuses every global by name, and passes growing lists to ``on_grown``; the opcode scan refuses the rest.

    ``persistent_load`` is called for the opcode that ``_Asking`` puts in, with the object on top of the stack, and what
    it returns takes the object's place.
    """

    def __init__(self, stream: BinaryIO, on_grown: Optional[Callable[[object], object]]) -> None:
        super().__init__(stream)
        self._on_grown = on_grown

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedPickleError(
            f"wants {shown(f'{module}.{name}')[1:-1]}: a snapshot holds plain containers, strings and numbers only"
        )

    def persistent_load(self, pid: object) -> object:
        if self._on_grown is None:
            raise RefusedPickleError(f"wants an object kept elsewhere (persistent id {shown(pid)})")
        self._on_grown(pid)
        return pid


class _Asking(io.RawIOBase):
    """A pickle stream that gets an extra opcode where a list has grown, so that the unpickler passes on the list.

    Without the frames of protocol 4, whose length would no longer be true; the unpickler needs none.
    """

    def __init__(self, content: bytes, places: array[int]) -> None:
        super().__init__()
        self._pieces = _pieces(memoryview(content), places)
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        wanted = memoryview(buffer).cast("B")
        while not self._piece:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._piece = piece
        count = min(len(wanted), len(self._piece))
        wanted[:count] = self._piece[:count]
        self._piece = self._piece[count:]
        return count


def _pieces(content: memoryview, places: array[int]) -> Iterator[memoryview]:
    """``places``: as ``check`` returns them."""
    begin = 0
    for end, next_begin in zip(places[::2], places[1::2]):
        yield content[begin:end]
        if next_begin == end:
            yield _ASK
        begin = next_begin
    yield content[begin:]


@contextmanager
def _without_collection() -> Iterator[None]:
    """A million new dicts would set off the cyclic collector hundreds of times, each time over all of them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_SHORT = 32
"""Strings up to this length are matched by the expression itself; longer ones cost a call each."""
_MAX_NUMBER_BYTES = 16
_MAX_NUMBER_LINE_BYTES = 64
_MAX_NESTING_TUPLES = 1_000
"""Tuples that may hold other tuples. Hashing one nests a C call for each level."""
_CONTAINERS_PER_BYTE = 1 / 8
_CONTAINERS_FREE = 100_000
"""An empty dict is one byte here and 64 in memory. A snapshot has an event in some 84 bytes, a frame in some 60."""

_BETWEEN_GROWN_BYTES = 512
"""A batch of a snapshot's history is a thousand entries, in 50 kB and more."""

_REFUSED = {
    b"i": "an instance of a class",
    b"o": "an instance of a class",
    b"R": "a call of a function",
    b"b": "to set an object's state",
    b"\x81": "an instance of a class",
    b"\x92": "an instance of a class",
    b"\x82": "an object of the extension registry",
    b"\x83": "an object of the extension registry",
    b"\x84": "an object of the extension registry",
    b"P": "an object kept elsewhere (a persistent id)",
    b"Q": "an object kept elsewhere (a persistent id)",
    b"\x97": "a buffer kept elsewhere",
    b"\x98": "a buffer kept elsewhere",
    b"\x8f": "a set",
    b"\x90": "a set",
    b"\x91": "a frozenset",
    b"\x96": "a bytearray",
}
_LAST = frozenset((b".", b"c", b"\x93"))
"""The end, and what makes the unpickler ask ``find_class``, which knows the name to tell and ends it there."""


def check(data: bytes) -> array[int]:
    """Walk ``data`` up to its end, or to the first opcode that names a class or a function.

    Returns pairs of places in order, typecode ``Q``: two different ones are the beginning and the end of a ``FRAME``,
    two equal ones the place where a list has just grown by a batch of items (behind ``APPENDS``; not each such place,
    but some hundred bytes apart at least).

    Raises ``RefusedPickleError`` for what plain data does not need, ``BadTraceError`` for what is no pickle.
    """
    # Counted without regard to opcodes, so bytes of numbers count as well: that is a 64th part of them.
    containers = sum(data.count(opcode) for opcode in (b"}", b"]", b"d", b"l"))
    if containers > len(data) * _CONTAINERS_PER_BYTE + _CONTAINERS_FREE:
        raise RefusedPickleError("wants more containers than a file of its length holds when they hold anything")
    nesting_tuples = 0
    places = array("Q")
    position = next_grown = 0
    while True:
        matched = _HARMLESS.match(data, position)
        position = position if matched is None else matched.end()
        opcode = data[position : position + 1]
        if opcode in _LAST:
            return places
        if opcode in _TUPLES:
            nesting_tuples += 1
            if nesting_tuples > _MAX_NESTING_TUPLES:
                raise RefusedPickleError(f"wants more than {_MAX_NESTING_TUPLES:,} tuples of other things than numbers")
        if matched is not None and matched.end() > matched.start() and opcode in _FIRST_OF_HARMLESS:
            continue  # the expression had its fill, and goes on from here
        end_of = _ARGUMENTS.get(opcode)
        if end_of is None:
            raise _refusal(opcode, position)
        before, position = position, end_of(data, position + 1)
        if opcode == b"\x95":
            places.extend((before, position))
        elif opcode == b"e" and position >= next_grown:
            places.extend((position, position))
            next_grown = position + _BETWEEN_GROWN_BYTES


def _refusal(opcode: bytes, position: int) -> BadTraceError:
    if opcode in _REFUSED:
        return RefusedPickleError(
            f"wants {_REFUSED[opcode]} at byte {position}: a snapshot holds plain containers, strings and numbers only"
        )
    if not opcode:
        return BadTraceError(f"is cut off: the pickle goes on after byte {position}, where the file ends")
    return BadTraceError(f"is no pickle, or a damaged one: byte {position} is {opcode!r}, which begins nothing")


def _fixed(length: int) -> Callable[[bytes, int], int]:
    def end(data: bytes, start: int) -> int:
        return _within(data, start, length)

    return end


def _counted(width: int, *, is_number: bool = False) -> Callable[[bytes, int], int]:
    """Bytes, text or a number behind its own length."""

    def end(data: bytes, start: int) -> int:
        after = _within(data, start, width)
        length = int.from_bytes(data[start:after], "little")
        if is_number and length > _MAX_NUMBER_BYTES:
            raise RefusedPickleError(f"wants a number of {length:,} bytes at byte {start}")
        return _within(data, after, length)

    return end


def _frame(data: bytes, start: int) -> int:
    after = _within(data, start, 8)
    _within(data, after, int.from_bytes(data[start:after], "little"))
    return after


def _memo_index(data: bytes, start: int) -> int:
    after = _within(data, start, 4)
    _sane_index(data, int.from_bytes(data[start:after], "little"), start)
    return after


def _memo_line(data: bytes, start: int) -> int:
    end = _number_line(data, start)
    digits = data[start : end - 1]
    _sane_index(data, int(digits) if digits.isdigit() else len(data), start)
    return end


def _sane_index(data: bytes, index: int, start: int) -> None:
    """The unpickler makes a table as long as the largest index; each real one stands for an object in the file."""
    if index >= len(data):
        raise RefusedPickleError(f"wants a table of {index:,} objects at byte {start}, more than it has bytes")


def _number_line(data: bytes, start: int) -> int:
    end = _line(data, start)
    if end - start > _MAX_NUMBER_LINE_BYTES:
        raise RefusedPickleError(f"wants a number of {end - start:,} digits at byte {start}")
    return end


def _line(data: bytes, start: int) -> int:
    end = data.find(b"\n", start) + 1
    if end == 0:
        raise BadTraceError("is cut off: the file ends in the middle of a line of the pickle")
    return end


def _within(data: bytes, start: int, length: int) -> int:
    if start + length > len(data):
        raise BadTraceError(
            f"is cut off: {length:,} bytes should follow byte {start}, and the file has {len(data) - start:,}"
        )
    return start + length


_TUPLES = frozenset((b"t", b"\x85", b"\x86", b"\x87"))
_NOTHING = _fixed(0)
_ARGUMENTS: dict[bytes, Callable[[bytes, int], int]] = {
    **dict.fromkeys(_TUPLES, _NOTHING),
    **{bytes((code,)): _NOTHING for code in b"N\x88\x89}])(012aesuld\x94"},
    **dict.fromkeys((b"K", b"q", b"h", b"\x80"), _fixed(1)),
    b"M": _fixed(2), b"J": _fixed(4), b"j": _fixed(4), b"G": _fixed(8),
    b"r": _memo_index, b"p": _memo_line, b"g": _number_line,
    b"I": _number_line, b"L": _number_line, b"F": _number_line,
    b"S": _line, b"V": _line,
    b"\x8a": _counted(1, is_number=True), b"\x8b": _counted(4, is_number=True),
    b"U": _counted(1), b"\x8c": _counted(1), b"C": _counted(1),
    b"T": _counted(4), b"X": _counted(4), b"B": _counted(4),
    b"\x8d": _counted(8), b"\x8e": _counted(8),
    b"\x95": _frame,
}  # fmt: skip
"""What follows each opcode that is allowed."""


def _harmless() -> re.Pattern[bytes]:
    """Runs of opcodes that carry no length and no index that could lie: nearly all of a snapshot.

    Possessive repetition would need Python 3.11; a bounded one keeps the expression's own memory small.
    """
    number = rb"(?:K.|M..|J....|[N\x88\x89]|G.{8}|\x8a(?:\x06.{6}|\x07.{7}|\x05.{5}|\x08.{8}|\x04.{4}|\x09.{9}|\x00))"
    tuples_of_numbers = number + rb"(?:\x85|" + number + rb"(?:\x86|" + number + rb"\x87)?)?"
    sizes = b"|".join(re.escape(bytes((size,))) + rb".{%d}" % size for size in range(_SHORT))
    wide = b"|".join(re.escape(bytes((size,))) + rb"\x00\x00\x00.{%d}" % size for size in range(_SHORT))
    return re.compile(
        rb"(?:h.|j....|" + tuples_of_numbers + rb"|[\x94}\])asuld012]|\((?:" + number + rb"{0,8}t)?|q.|"
        rb"\x8c(?:" + sizes + rb")|X(?:" + wide + rb")){1,1000}",
        re.DOTALL,
    )  # fmt: skip


_HARMLESS = _harmless()
_FIRST_OF_HARMLESS = frozenset(bytes((code,)) for code in b"hjKMJN\x88\x89G\x8a\x94}])asuld012(q\x8cX")
