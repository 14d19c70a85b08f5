"""Reads numpy's ``.npz`` files of integer arrays and one text, with the standard library alone.

The format is ``numpy.lib.format``: a magic, a header that is a Python literal, the raw elements. Read here, an array of
objects (which would be a pickle) or one that claims more elements than its file holds is refused before it costs
anything; and ``tidegauge replay`` needs no numpy.
"""

from __future__ import annotations

import ast
import io
import struct
import sys
import zipfile
import zlib
from array import array
from math import prod
from typing import NamedTuple, Union

from tidegauge.analysis.bad_traces import BadTraceError, shown
from tidegauge.core.units import format_bytes

_MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 4_096
_TYPECODES = {
    "|u1": "B", "|b1": "B", "|i1": "b", "<u2": "H", "<i2": "h", "<u4": "I", "<i4": "i", "<u8": "Q", "<i8": "q",
}  # fmt: skip
_SUFFIX = ".npy"
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OSError,
    ValueError,
    struct.error,
)
"""What ``zipfile`` raises for damaged archives; a ``ValueError`` where an offset in one is negative."""


class NumberArray(NamedTuple):
    """Numbers in C order."""

    values: array[int]
    shape: tuple[int, ...]


NpyArray = Union[NumberArray, str]


def read_npz(content: bytes, *, most_bytes: int) -> dict[str, NpyArray]:
    """The arrays of an ``.npz`` by name; one of no dimensions that holds text is a ``str``.

    Raises ``BadTraceError`` for what is no such file, or unzips to more than ``most_bytes``.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
            unzipped = sum(member.file_size for member in members)
            if unzipped > most_bytes:
                raise BadTraceError(
                    f"unzips to {format_bytes(unzipped)}; more than {format_bytes(most_bytes)} is not read"
                )
            # The archive's own reader stops at the length that the member declares.
            return {_name(member): _read(archive.read(member), _name(member)) for member in members}
    except BadTraceError:
        raise
    except _DAMAGED as error:
        raise BadTraceError(f"is no whole .npz file: {shown(str(error), 200)}") from error


def _name(member: zipfile.ZipInfo) -> str:
    return member.filename[: -len(_SUFFIX)] if member.filename.endswith(_SUFFIX) else member.filename


def _read(content: bytes, name: str) -> NpyArray:
    if not content.startswith(_MAGIC) or len(content) < 12:
        raise BadTraceError(f"member {shown(name)} is no numpy array")
    start = 10 if content[6] == 1 else 12
    length = int.from_bytes(content[8:start], "little")
    if length > _MAX_HEADER_BYTES:
        raise BadTraceError(f"array {shown(name)} has a header of {length:,} bytes")
    kind, shape = _header(content[start : start + length], name)
    return _elements(memoryview(content)[start + length :], kind, shape, name)


def _header(text: bytes, name: str) -> tuple[str, tuple[int, ...]]:
    try:
        header = ast.literal_eval(text.decode("latin-1").strip())
        kind, fortran, shape = header["descr"], header["fortran_order"], header["shape"]
    except (ValueError, TypeError, KeyError, SyntaxError, MemoryError, RecursionError) as error:
        raise BadTraceError(f"array {shown(name)} has no header that can be read") from error
    sizes_ok = isinstance(shape, tuple) and all(isinstance(size, int) and 0 <= size < 1 << 48 for size in shape)
    if not isinstance(kind, str) or not sizes_ok or (fortran and len(shape) > 1):
        raise BadTraceError(f"array {shown(name)} is laid out in a way that is not read: {shown(kind)}")
    return kind, shape


def _elements(data: memoryview, kind: str, shape: tuple[int, ...], name: str) -> NpyArray:
    letters = kind[2:]
    if kind.startswith("<U") and letters.isascii() and letters.isdigit() and len(letters) <= 15 and not shape:
        if len(data) != 4 * int(letters):
            raise BadTraceError(f"array {shown(name)} is cut off")
        try:
            return bytes(data).decode("utf-32-le").rstrip("\0")
        except UnicodeDecodeError as error:
            raise BadTraceError(f"array {shown(name)} holds no text that can be read") from error
    typecode = _TYPECODES.get(kind)
    if typecode is None:
        raise BadTraceError(f"array {shown(name)} has elements of type {shown(kind)}, not of whole numbers")
    values = array(typecode)
    if len(data) != prod(shape) * values.itemsize:
        raise BadTraceError(
            f"array {shown(name)} should hold {prod(shape):,} numbers, and its file holds {len(data):,} bytes"
        )
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return NumberArray(values, shape)
