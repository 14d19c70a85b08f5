"""Unpickles plain containers, strings and numbers, and refuses everything else by name."""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, NoReturn

from tidegauge.analysis.bad_traces import BadTraceError, RefusedPickleError, shown
from tidegauge.analysis.contents import MOST_BYTES, read_content
from tidegauge.analysis.pickle_opcodes import check

_UNPICKLING_ERRORS = (
    pickle.UnpicklingError, EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError, OverflowError,
)  # fmt: skip
"""What the C unpickler raises for a damaged pickle, such as a dict as a key, or a memo entry that is not there."""


def load(stream: BinaryIO, *, most_bytes: int = MOST_BYTES) -> object:
    """The plain object in ``stream`` (gzip or not), built of dict, list, tuple, str, bytes, int, float, bool, None.

    Objects may be shared and may hold themselves. Raises ``RefusedPickleError`` for a pickle that wants anything
    else, ``BadTraceError`` for a damaged one or one longer than ``most_bytes``. Nothing a pickle names is imported.
    """
    return loads(read_content(stream, most_bytes=most_bytes))


def loads(content: bytes) -> object:
    """``load`` of what has been read already."""
    check(content)
    try:
        with _without_collection():
            return _PlainUnpickler(io.BufferedReader(io.BytesIO(content))).load()
    except RefusedPickleError:
        raise
    except _UNPICKLING_ERRORS as error:
        raise BadTraceError(f"is no pickle, or a damaged one: {shown(str(error), 200)}") from error


class _PlainUnpickler(pickle.Unpickler):
    """The opcode scan lets nothing through that reaches these two, but for the name that is to be told."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise RefusedPickleError(
            f"wants {shown(f'{module}.{name}')[1:-1]}: a snapshot holds plain containers, strings and numbers only"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise RefusedPickleError(f"wants an object kept elsewhere (persistent id {shown(pid)})")


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
