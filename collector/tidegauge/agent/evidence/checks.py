"""Validates the content of a rank's files: accepts only numbers within a range and lines of printable text.

Nothing here runs code, waits, or takes more memory than its bounds; invalid content raises ``UnsafeFileError``.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from typing import TypeVar

from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.untrusted_files import decompressed, is_zlib
from tidegauge.core import wire
from tidegauge.core.bounded import LARGEST, bounded
from tidegauge.core.evidence.owners import MAX_ROOTS, CodeRoots
from tidegauge.core.evidence.rank_evidence import MAX_HOLDERS, MAX_ID_CHARS, RankEvidence
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.rank_recording import MAX_OWNED, MAX_STEPS, RankRecording
from tidegauge.core.run_dirs import EARLY_SUFFIX, LATE_SUFFIX, PROFILE_SNAPSHOT_SUFFIX, snapshot_name
from tidegauge.core.snapshot_columns import MAGIC, PackedSnapshot, SnapshotFormatError, unpack
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes

T = TypeVar("T")

LATEST_UNIX_S = 1e11
MAX_UNPACKED_BYTES = 64 << 20
"""Of one snapshot. 100,000 events, 100,000 blocks and their stacks take some 10 MB."""
MAX_HEAD_BYTES = 4 << 20
"""Of its JSON head: each of its values takes some 60 bytes of memory, however short it is."""
MAX_ROWS = {"frames": 60_000, "stacks": 20_000, "stack frames": 200_000, "blocks": 100_000, "events": 200_000}
"""The probe takes no snapshot of more than 30,000 blocks. Each becomes an object of some 200 bytes and costs some 40 us
when it is compared: this bounds what a job may make the agent hold and work."""
_ID = re.compile(rf"[!-~]{{1,{MAX_ID_CHARS}}}")


def read_evidence(content: bytes, claimed: ProcessId) -> RankEvidence:
    """Read the findings of the process that calls itself ``claimed``; texts become printable lines of bounded length.

    Raises ``UnsafeFileError``.
    """
    claim, found = _read(RankEvidence, content, "evidence")
    _check(_ID.fullmatch(claim.evidence_id) is not None, "invalid id")
    _check(found.device >= 0, "invalid device")
    _check(0 <= found.began_unix_s <= found.ended_unix_s <= LATEST_UNIX_S, "invalid times")
    steps = [step for step in (found.began_step, found.early_step, found.late_step) if step is not None]
    _check(steps == sorted(steps), "its steps go backwards")
    for name, suffix in ((found.early_file, EARLY_SUFFIX), (found.late_file, LATE_SUFFIX)):
        _check(name in (None, snapshot_name(claimed, suffix)), "it names a file of another process")
    found = dataclasses.replace(found, roots=_some(found.roots))
    if found.search is None:
        return found
    search = found.search._replace(holders=found.search.holders[:MAX_HOLDERS])
    return dataclasses.replace(found, search=search)


def read_recording(content: bytes, claimed: ProcessId) -> RankRecording:
    """Read the recording of the process that calls itself ``claimed``, as ``read_evidence`` does. Raises
    ``UnsafeFileError``."""
    claim, found = _read(RankRecording, content, "recording")
    _check(_ID.fullmatch(claim.recording_id) is not None, "invalid id")
    _check(found.began_step <= found.ended_step, "its steps go backwards")
    _check(len(found.boundaries_us) <= MAX_STEPS + 1, "it has too many steps")
    _check(list(found.boundaries_us) == sorted(found.boundaries_us), "its steps go backwards")
    name = snapshot_name(claimed, PROFILE_SNAPSHOT_SUFFIX)
    _check(found.snapshot_file in (None, name), "it names a file of another process")
    owned, before = found.owned[:MAX_OWNED], found.owned_before[:MAX_OWNED]
    return dataclasses.replace(found, roots=_some(found.roots), owned=owned, owned_before=before)


def read_snapshot(compressed: bytes) -> tuple[bytes, PackedSnapshot]:
    """Decompress and decode a snapshot that the probe wrote: ``core.snapshot_columns``, and its content.

    Raises ``UnsafeFileError``.
    """
    try:
        _check(is_zlib(compressed), "its snapshot is not in the probe's format")
        content = decompressed(compressed, most_bytes=MAX_UNPACKED_BYTES)
        head_bytes = struct.unpack_from("<I", content, len(MAGIC))[0] if content.startswith(MAGIC) else 0
        if head_bytes > MAX_HEAD_BYTES:
            raise UnsafeFileError("too_large", f"the header of its snapshot has {format_bytes(head_bytes)}")
        packed = unpack(content)
    except (BadTraceError, SnapshotFormatError, struct.error) as error:
        raise UnsafeFileError("content", f"its snapshot cannot be read: {one_line(str(error), 200)}") from error
    rows = {
        "frames": len(packed.frames["line"]),
        "stacks": len(packed.stacks["depth"]),
        "stack frames": len(packed.stack_frames),
        "blocks": sum(len(one.blocks["state"]) + len(one.segments["address"]) for one in packed.devices),
        "events": sum(len(one.events["action"]) for one in packed.devices),
    }
    for what, most in MAX_ROWS.items():
        if rows[what] > most:
            raise UnsafeFileError("too_large", f"its snapshot has {rows[what]:,} {what}; the limit is {most:,}")
    return content, packed


def number_of(packed: PackedSnapshot, name: str) -> float | None:
    """A fact of a snapshot that ought to be a number; ``None`` where it is none, or out of range."""
    value = packed.facts.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LARGEST:
        return None
    return value


def _read(form: type[T], content: bytes, what: str) -> tuple[T, T]:
    """A rank's claim as it is, and ``bounded``. Raises ``UnsafeFileError``."""
    try:
        claim = wire.from_wire(form, json.loads(content, parse_constant=_no_number))
        return claim, bounded(claim)
    except (ValueError, RecursionError) as error:
        raise UnsafeFileError("content", f"invalid {what}: {one_line(str(error), 200)}") from error


def _some(roots: CodeRoots | None) -> CodeRoots | None:
    return None if roots is None else CodeRoots(*(folders[:MAX_ROOTS] for folders in roots))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise UnsafeFileError("content", otherwise)
