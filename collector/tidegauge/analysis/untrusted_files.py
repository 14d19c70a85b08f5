"""Reads an untrusted file whole and decompresses it, up to a size limit.

What it is compressed with is told by its first bytes: gzip (PyTorch's snapshots are often kept so), zlib (what the
probe writes beside its ring), zstandard (what the store keeps).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, Optional

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.units import format_bytes

MAX_CONTENT_BYTES = 2 << 30
"""Decompressed. A snapshot takes some 60 to 200 bytes an event (allocator notes, 3.4): ten million events and more."""
MIN_UNZIPPED_LIMIT_BYTES, MAX_UNZIPPED_RATIO = 256 << 20, 100
"""What compressed content may become: this much, or this many times its own size where that is more. Snapshots become
10 to 50 times smaller; what becomes 1,000 times smaller was made to fill the reader's memory."""
ZSTANDARD_MAGIC = b"\x28\xb5\x2f\xfd"

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_INFLATED_PIECE_BYTES = 1 << 12
"""Given to zlib at a time: at most 4 MiB come of it, a mebibyte at a time."""
_ZSTANDARD_PIECE_BYTES = 1 << 10
"""Given to the decompressor at a time: four bytes may become 128 KiB, and it cannot be told to stop there."""
_MAX_WINDOW_BYTES = 128 << 20
"""What zstandard may keep of its past. Only who asks for it when compressing gets more, and no snapshot needs it."""


def read_content(stream: BinaryIO, *, most_bytes: int = MAX_CONTENT_BYTES) -> bytes:
    """Everything up to the end of ``stream``, decompressed, whatever its name.

    Raises ``BadTraceError`` where it is longer than ``most_bytes`` (before or after that), or not whole.
    """
    content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise BadTraceError(f"is longer than {format_bytes(most_bytes)}, which is more than is read")
    return decompressed(content, most_bytes=most_bytes)


def decompressed(content: bytes, *, most_bytes: int = MAX_CONTENT_BYTES) -> bytes:
    """``content`` as it is, or what is in it. Raises ``BadTraceError``."""
    unpack = _unpacker(content)
    if unpack is None:
        return content
    most_bytes = min(most_bytes, max(MIN_UNZIPPED_LIMIT_BYTES, MAX_UNZIPPED_RATIO * len(content)))
    chunks: list[bytes] = []
    length = 0
    for chunk in unpack(content):
        length += len(chunk)
        if length > most_bytes:
            raise BadTraceError(
                f"unzips from {format_bytes(len(content))} to more than {format_bytes(most_bytes)}, which is more than "
                "is read"
            )
        chunks.append(chunk)
    return b"".join(chunks)


def is_zlib(content: bytes) -> bool:
    """Whether the content begins as in RFC 1950, with the usual window: no pickle and no text of snapshots does."""
    return content[:1] == b"\x78" and len(content) > 1 and int.from_bytes(content[:2], "big") % 31 == 0


def _unpacker(content: bytes) -> Optional[Callable[[bytes], Iterator[bytes]]]:
    if content.startswith(_GZIP_MAGIC):
        return partial(_inflated, name="gzip", window_bits=zlib.MAX_WBITS | 16)
    if content.startswith(ZSTANDARD_MAGIC):
        return _of_zstandard
    return partial(_inflated, name="zlib", window_bits=zlib.MAX_WBITS) if is_zlib(content) else None


def _inflated(content: bytes, *, name: str, window_bits: int) -> Iterator[bytes]:
    place = length = 0
    while place < len(content):  # gzip files may be joined; what follows a member is another one
        member = zlib.decompressobj(wbits=window_bits)
        while not member.eof:
            # In pieces: each member copies what it leaves, and a file may be a million empty ones.
            piece = content[place : place + _INFLATED_PIECE_BYTES]
            try:
                chunk = member.decompress(piece, _CHUNK)
            except zlib.error as error:
                raise BadTraceError(f"has damaged {name} data after {length:,} unzipped bytes: {error}") from error
            # All may have been taken in before the last of it was given out, and the end be found only now.
            if not chunk and not piece and not member.eof:
                raise BadTraceError(f"ends in the middle of its {name} data, after {length:,} unzipped bytes")
            # At the end of a member the tail is no longer kept up to date.
            place += len(piece) - len(member.unused_data if member.eof else member.unconsumed_tail)
            length += len(chunk)
            yield chunk


def _of_zstandard(content: bytes) -> Iterator[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise BadTraceError(
            "is compressed with zstandard, whose package is not installed here. Install it with: "
            "pip install 'tidegauge[agent]', or decompress the file first: zstd -d FILE"
        ) from error
    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
    place = length = 0
    while place < len(content):  # frames may be joined
        frame = decompressor.decompressobj()
        while not frame.eof:
            piece = content[place : place + _ZSTANDARD_PIECE_BYTES]
            if not piece:
                raise BadTraceError(f"ends in the middle of its zstandard data, after {length:,} unzipped bytes")
            try:
                chunk = frame.decompress(piece)
            except zstandard.ZstdError as error:
                raise BadTraceError(f"has damaged zstandard data after {length:,} unzipped bytes: {error}") from error
            place += len(piece)
            length += len(chunk)
            yield chunk
        place -= len(frame.unused_data)
