"""Writes a rank's files of evidence and of memory profiles beside its ring for the agent: snapshots in columns, and
findings. Each file gets its name when it is complete."""

from __future__ import annotations

import dataclasses
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import Optional

from tidegauge.core.evidence.rank_evidence import RankEvidence
from tidegauge.core.ids import ProcessId
from tidegauge.core.profile.rank_recording import OwnedTensor, RankRecording
from tidegauge.core.run_dirs import (
    EARLY_SUFFIX,
    LATE_SUFFIX,
    PROFILE_SNAPSHOT_SUFFIX,
    evidence_draft_name,
    evidence_name,
    recording_name,
    snapshot_name,
)
from tidegauge.core.snapshot_columns import PackedSnapshot, pack_parts
from tidegauge.core.wire import to_json
from tidegauge.probe.pacing import Pacer
from tidegauge.probe.run_files.run_folder import NoRoomError, RunFolder

MAX_FILE_BYTES = 16 << 20
"""Of a file. 30,000 blocks and 20,000 events of a transformer take 0.3 MB."""
MIN_ROOM_BYTES = 64 << 10
"""For a recording: one of a small model has 10 KB."""
_ZLIB_LEVEL = 3
"""Half the time of the default for a tenth more bytes; the agent compresses again."""
_AT_ONCE = 1 << 16


class EvidenceFiles:
    """Writes one process's evidence files."""

    def __init__(self, folder: RunFolder, process: ProcessId) -> None:
        self._folder = folder
        self._process = process
        self._draft = evidence_draft_name(process)
        self._lock = threading.Lock()  # for the draft's name

    def write_snapshot(self, suffix: str, snapshot: PackedSnapshot, pacer: Pacer) -> tuple[str, int]:
        """Write a snapshot; returns its name and size in bytes. Raises ``OSError`` and ``StoppedError``."""
        compress = zlib.compressobj(_ZLIB_LEVEL)
        parts = []
        for part in pack_parts(snapshot):
            for at in range(0, len(part), _AT_ONCE):
                parts.append(compress.compress(part[at : at + _AT_ONCE]))
                pacer.pace()
        content = b"".join([*parts, compress.flush()])
        name = snapshot_name(self._process, suffix)
        self._write(name, content)
        return name, len(content)

    def write_evidence(self, evidence: RankEvidence) -> None:
        """Write the last of the files: its reader finds the others complete. Raises ``OSError``."""
        self._write(evidence_name(self._process), to_json(evidence))

    def remove_evidence(self) -> None:
        """Remove a window's files, whole or begun; a requested snapshot stays. Raises ``OSError``."""
        self._remove(evidence_name(self._process), *self._snapshots(EARLY_SUFFIX, LATE_SUFFIX))

    def no_room_for_recording(self) -> Optional[str]:
        """Why not to begin with one, for people. Raises ``OSError``."""
        if self._folder.has_room_for(MIN_ROOM_BYTES):
            return None
        free_kib = self._folder.free_bytes() >> 10
        return f"there is too little room for a recording in {self._folder.path}: {free_kib:,} KiB are free"

    def write_recording(self, recording: RankRecording, pacer: Pacer) -> None:
        """Write a recording for a memory profile, after its snapshot. Raises ``OSError`` and ``StoppedError``."""
        fields = {field.name: getattr(recording, field.name) for field in dataclasses.fields(recording)}
        for name in ("owned", "owned_before"):
            fields[name] = _paced(fields[name], pacer)
        self._write(recording_name(self._process), to_json(fields))

    def remove_recording(self) -> None:
        """Remove a recording's files, whole or begun. Raises ``OSError``."""
        self._remove(recording_name(self._process), *self._snapshots(PROFILE_SNAPSHOT_SUFFIX))

    def _snapshots(self, *suffixes: str) -> list[str]:
        return [snapshot_name(self._process, suffix) for suffix in suffixes]

    def _remove(self, *names: str) -> None:
        with self._lock:
            for name in (*names, self._draft):
                self._folder.remove(name)

    def _write(self, name: str, content: bytes) -> None:
        if len(content) > MAX_FILE_BYTES or not self._folder.has_room_for(len(content)):
            raise NoRoomError(f"{len(content):,} bytes do not fit into {self._folder.path}")
        with self._lock:
            self._folder.write(self._draft, content)
            self._folder.rename(self._draft, name)


def _paced(owned: Sequence[OwnedTensor], pacer: Pacer) -> Iterator[OwnedTensor]:
    for one in owned:
        pacer.pace()
        yield one
