"""Reads memory snapshots of either format, PyTorch's pickle or Tidegauge's columns, and writes the latter.

The first bytes tell the format. Raises ``BadTraceError`` for everything that a person can mend: also for a place that
cannot be reached and a package that is missing.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, Union

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.pickles import FIRST_BYTES, read_pickle
from tidegauge.analysis.snapshots.pickles import OWN_KEY as OWN_KEY
from tidegauge.analysis.snapshots.traces import Snapshot as Snapshot
from tidegauge.analysis.untrusted_files import MAX_CONTENT_BYTES, ZSTANDARD_MAGIC, is_zlib, read_content
from tidegauge.core.snapshot_columns import MAGIC, PackedSnapshot, SnapshotFormatError, pack_parts, unpack

INSTALL = "pip install 'tidegauge[agent]'"
LEVEL = 9
"""Of zstandard: a tenth less room than its default of 3 leaves, in some 10 ms for a snapshot of 3,000 events."""


def is_own_form(first_bytes: bytes) -> bool:
    """Whether a file that begins so may hold, perhaps compressed, a snapshot in Tidegauge's own form."""
    return first_bytes.startswith((MAGIC[:6], ZSTANDARD_MAGIC)) or is_zlib(first_bytes)


def read_stream(stream: BinaryIO, *, most_bytes: int = MAX_CONTENT_BYTES) -> Snapshot:
    """The snapshot in an open file, compressed (gzip, zlib, zstandard) or not."""
    return read_bytes(read_content(stream, most_bytes=most_bytes))


def read_bytes(content: bytes) -> Snapshot:
    """The snapshot in what was decompressed. Raises ``BadTraceError``: what was expected, and where."""
    if content.startswith(MAGIC[:6]):  # of another version as well: the reader says which
        try:
            return from_packed(unpack(content))
        except SnapshotFormatError as error:
            raise BadTraceError(f"is a damaged snapshot of Tidegauge's: {error}") from error
    if content[:1] not in FIRST_BYTES:
        raise BadTraceError("is neither a snapshot of torch.cuda.memory nor one of Tidegauge's, nor an .npz trace")
    return read_pickle(content)


def read_snapshot(where: Union[str, Path], *, most_bytes: int = MAX_CONTENT_BYTES) -> Snapshot:
    """The snapshot in a file or at a URL that fsspec knows (``https://``, ``s3://`` …), whatever its name.

    PyTorch's pickle or Tidegauge's columns, plain or compressed by gzip, zlib or zstandard. Raises ``BadTraceError``
    (``RefusedPickleError``) that names it; also where it has more than ``most_bytes``, before or after decompression.
    """
    if isinstance(where, str) and "://" in where:
        return _read_url(where, most_bytes)
    path = Path(where)
    try:
        with path.open("rb") as stream:
            return read_stream(stream, most_bytes=most_bytes)
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except BadTraceError as error:
        raise type(error)(f"{path}: {error}") from error


def write_packed(parts: Union[PackedSnapshot, Iterable[bytes]]) -> bytes:
    """A snapshot as it is kept, in zstandard: of columns, or of the pieces of a file that holds them already.

    Raises ``BadTraceError`` where the package is missing.
    """
    try:
        import zstandard
    except ModuleNotFoundError as error:
        raise BadTraceError(f"to compress it needs the package zstandard. Install it with: {INSTALL}") from error
    pieces = pack_parts(parts) if isinstance(parts, PackedSnapshot) else parts
    compressor = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
    return b"".join((*map(compressor.compress, pieces), compressor.flush()))


def _read_url(url: str, most_bytes: int) -> Snapshot:
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise BadTraceError(f"{url}: to read URLs needs the package fsspec. Install it with: {INSTALL}") from error
    try:
        with fsspec.open(url, "rb") as stream:
            return read_stream(stream, most_bytes=most_bytes)
    except BadTraceError as error:
        raise type(error)(f"{url}: {error}") from error
    except ImportError as error:  # its text names the package: "Install s3fs to access S3"
        raise BadTraceError(f"{url}: {error}") from error
    except Exception as error:  # each driver has exceptions of its own
        raise BadTraceError(f"{url}: cannot be read: {type(error).__name__}: {error}") from error
