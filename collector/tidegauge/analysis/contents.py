"""The whole content of a file that nobody vouches for: unzipped where it is gzip, never more than was allowed."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.units import format_bytes

MOST_BYTES = 2 << 30
"""Unzipped. A snapshot takes some 85 to 200 bytes an event (allocator notes, 3.4): ten million events and more."""

_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


def read_content(stream: BinaryIO, *, most_bytes: int = MOST_BYTES) -> bytes:
    """Everything up to the end of ``stream``, unzipped if it begins as gzip does, whatever its name.

    Raises ``BadTraceError`` where it is longer than ``most_bytes`` (before or after unzipping), or not whole.
    """
    content = stream.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise BadTraceError(f"is longer than {format_bytes(most_bytes)}, which is more than is read")
    return _unzipped(content, most_bytes) if content.startswith(_GZIP_MAGIC) else content


def _unzipped(content: bytes, most_bytes: int) -> bytes:
    chunks: list[bytes] = []
    length = 0
    rest = content
    while rest:  # gzip files may be joined; what follows a member is another one
        member = zlib.decompressobj(wbits=31)
        while not member.eof:
            try:
                chunk = member.decompress(rest, _CHUNK)
            except zlib.error as error:
                raise BadTraceError(f"has damaged gzip data after {length:,} unzipped bytes: {error}") from error
            if not chunk and not member.eof and not member.unconsumed_tail:
                raise BadTraceError(f"ends in the middle of its gzip data, after {length:,} unzipped bytes")
            rest = member.unconsumed_tail
            length += len(chunk)
            if length > most_bytes:
                raise BadTraceError(f"unzips to more than {format_bytes(most_bytes)}, which is more than is read")
            chunks.append(chunk)
        rest = member.unused_data
    return b"".join(chunks)
