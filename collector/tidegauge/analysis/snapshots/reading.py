"""Reads a memory snapshot of either format, PyTorch's pickle or Tidegauge's columns, detected by its first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.contents import MAX_CONTENT_BYTES, ZSTANDARD_MAGIC, is_zlib, read_content
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.pickles import FIRST_BYTES, read_pickle
from tidegauge.analysis.snapshots.pickles import OWN_KEY as OWN_KEY
from tidegauge.analysis.snapshots.traces import Snapshot as Snapshot
from tidegauge.core.snapshot_columns import MAGIC, SnapshotFormatError, unpack


def is_own_form(first_bytes: bytes) -> bool:
    """Whether a file that begins so may hold, perhaps compressed, a snapshot in Tidegauge's own form."""
    return first_bytes.startswith((MAGIC[:6], ZSTANDARD_MAGIC)) or is_zlib(first_bytes)


def read(path: Path, *, most_bytes: int = MAX_CONTENT_BYTES) -> Snapshot:
    """The snapshot in a file. Raises ``BadTraceError`` (``RefusedPickleError``) that names it."""
    try:
        with path.open("rb") as stream:
            return read_stream(stream, most_bytes=most_bytes)
    except OSError as error:
        raise BadTraceError(f"{path}: cannot be read: {error.strerror or error}") from error
    except BadTraceError as error:
        raise type(error)(f"{path}: {error}") from error


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
