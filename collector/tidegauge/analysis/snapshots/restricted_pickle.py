"""Unpickles plain containers, strings and numbers, and refuses everything else by name."""

from __future__ import annotations

import gc
import io
import pickle
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NoReturn, Optional

from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError, shown
from tidegauge.analysis.contents import MAX_CONTENT_BYTES, read_content
from tidegauge.analysis.snapshots.pickle_opcodes import check

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BUFFER_BYTES = 1 << 20
_ASK = memoryview(b"Q")
"""``BINPERSID``. The scan refuses it in a file, so that none but ours is ever met."""
_UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
)  # fmt: skip
"""What the C unpickler raises for a damaged pickle, such as a dict as a key, or a memo entry that is not there."""


def load(stream: BinaryIO, *, most_bytes: int = MAX_CONTENT_BYTES) -> object:
    """The plain object in ``stream`` (gzip or not), built of dict, list, tuple, str, bytes, int, float, bool, None.

    Objects may be shared and may hold themselves. Raises ``RefusedPickleError`` for a pickle that wants anything
    else, ``BadTraceError`` for a damaged one or one longer than ``most_bytes``. Nothing a pickle names is imported.
    """
    return loads(read_content(stream, most_bytes=most_bytes))


def loads(content: bytes, *, on_grown: Optional[Callable[[object], object]] = None) -> object:
    """``load`` of what has been read already.

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
    """``places``: as ``pickle_opcodes.check`` returns them."""
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
