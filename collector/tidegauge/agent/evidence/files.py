"""Evidence files that ranks write beside their rings: finds, opens and reads them as untrusted input.

A rank writes ``<pid>-<starttime>.evidence.json`` last when a window ends, ``.profile.json`` when a recording for a
memory profile does, and ``.asked.snap`` for a requested snapshot. They are opened when found and read later, elsewhere:
an open file stays readable to its end even if the rank writes the next one, or its ring and all beside it is cleared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.agent.run_dirs.folders import NotNowError, UserFolder, opened_folder
from tidegauge.agent.source_health import SkipCounts
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.run_dirs import (
    ASKED_SUFFIX,
    EARLY_SUFFIX,
    LATE_SUFFIX,
    PROFILE_SNAPSHOT_SUFFIX,
    evidence_name,
    recording_name,
    snapshot_name,
)
from tidegauge.core.units import format_bytes

LOOK_EVERY_S = 2.0
MAX_EVIDENCE_BYTES = 512 << 10
MAX_SNAPSHOT_BYTES = 32 << 20
"""Compressed, as it lies there."""
MAX_NAMES, MAX_NAMES_PER_RANK = 64, 16
"""In a folder that is listed: a rank has a ring, a socket, and a few files of evidence."""
_CHUNK = 1 << 20


class RankFolder(NamedTuple):
    """The folder of a rank's files, and the names they have there."""

    folder: UserFolder
    claimed: ProcessId
    """The process's own pid and start time, in its files' names; in a container not the host's pid."""
    tenant: Tenant
    """The tenant of the rank, for limits."""
    ended: bool


class OpenFile(NamedTuple):
    """An open file, and its state when it was opened."""

    fd: int
    name: str
    signature: Signature

    def read(self, most_bytes: int) -> bytes:
        """All of it. Raises ``UnsafeFileError`` where it is too large, or was written to meanwhile, and ``OSError``."""
        if self.signature.size > most_bytes:
            raise UnsafeFileError(
                "too_large",
                f"{self.name} has {format_bytes(self.signature.size)}; the limit is {format_bytes(most_bytes)}",
            )
        chunks: list[bytes] = []
        at = 0
        while chunk := os.pread(self.fd, min(_CHUNK, self.signature.size + 1 - at), at):
            chunks.append(chunk)
            at += len(chunk)
        now = Signature.of(os.fstat(self.fd))
        if at != self.signature.size or (now.size, now.mtime_ns) != (self.signature.size, self.signature.mtime_ns):
            raise UnsafeFileError("changed", f"{self.name} changed while it was read")
        return b"".join(chunks)


@dataclass(frozen=True)
class FoundFiles:
    """The open files that a rank wrote together. The holder closes them."""

    process: ProcessId
    """As the host counts it."""
    at: RankFolder
    evidence: OpenFile | None
    """Of a window; ``None`` for all else."""
    snapshots: Mapping[str, OpenFile]
    """By suffix: ``EARLY_SUFFIX`` and ``LATE_SUFFIX``, or ``PROFILE_SNAPSHOT_SUFFIX``, as far as they are there, or
    ``ASKED_SUFFIX``."""
    recording: OpenFile | None = None
    """For a memory profile."""

    @property
    def first(self) -> OpenFile:
        """The file that it was found by."""
        return self.evidence or self.recording or self.snapshots[ASKED_SUFFIX]

    def close(self) -> None:
        for file in (self.evidence, self.recording, *self.snapshots.values()):
            if file is not None:
                os.close(file.fd)


_Opens = Callable[[OpenFolder, ProcessId, RankFolder], FoundFiles]


class EvidenceFinder:
    """Finds new files beside the rings. For one thread.

    A file is handed out once, and again when it was replaced or written to.
    """

    def __init__(self, skips: SkipCounts) -> None:
        self._skips = skips
        self._known: dict[tuple[ProcessId, str], Signature] = {}
        self._ended: set[ProcessId] = set()
        """Ranks looked at since they ended: nothing new will come."""
        self._look_s = float("-inf")

    def new_files(self, ranks: Mapping[ProcessId, RankFolder], now_s: float) -> list[FoundFiles]:
        """Open what is new beside the rings of ``ranks``. ``now_s`` is a monotonic clock."""
        self._known = {place: seen for place, seen in self._known.items() if place[0] in ranks}
        self._ended &= ranks.keys()
        due = now_s - self._look_s >= LOOK_EVERY_S
        if due:
            self._look_s = now_s
        by_folder: dict[UserFolder, list[tuple[ProcessId, RankFolder]]] = {}
        for process, at in ranks.items():
            if process not in self._ended and (due or at.ended):
                by_folder.setdefault(at.folder, []).append((process, at))
                if at.ended:
                    self._ended.add(process)
        return [found for folder, beside in by_folder.items() for found in self._look_in(folder, beside, now_s)]

    def look_again(self, found: FoundFiles) -> None:
        """``found`` could not be taken now: close it, and find it again."""
        self._known.pop((found.process, found.first.name), None)
        self._ended.discard(found.process)
        found.close()

    def _look_in(
        self, folder: UserFolder, ranks: Sequence[tuple[ProcessId, RankFolder]], now_s: float
    ) -> list[FoundFiles]:
        found: list[FoundFiles] = []
        try:
            with opened_folder(folder) as there:
                names = _names_in(there, MAX_NAMES + MAX_NAMES_PER_RANK * len(ranks))
                for process, at in ranks:
                    for name, opens in (
                        (evidence_name(at.claimed), _open),
                        (recording_name(at.claimed), _open_recording),
                        (snapshot_name(at.claimed, ASKED_SUFFIX), _open_asked),
                    ):
                        if names is not None and name not in names:
                            self._known.pop((process, name), None)
                            continue
                        opened = self._open_new(there, process, at, name, opens, now_s)
                        if opened is not None:
                            found.append(opened)
        except NotNowError:
            self._ended.difference_update(process for process, _ in ranks)
        except (UnsafeFileError, OSError):  # the ring finder has said so already
            pass
        return found

    def _open_new(
        self, there: OpenFolder, process: ProcessId, at: RankFolder, name: str, opens: _Opens, now_s: float
    ) -> FoundFiles | None:
        place = (process, name)
        try:
            signature = there.look_at(name)
            if self._known.get(place) == signature:
                return None
            self._known[place] = signature
            return opens(there, process, at)
        except FileNotFoundError:
            self._known.pop(place, None)
        except (UnsafeFileError, OSError) as error:
            reason = error.reason if isinstance(error, UnsafeFileError) else "unreadable"
            self._skips.add(f"evidence_{reason}", f"{at.folder}/{name}", str(error), now_s=now_s)
        return None


def _names_in(there: OpenFolder, most: int) -> frozenset[str] | None:
    """All names in the folder; ``None`` if these are more. To look each up costs more than to list them."""
    names = frozenset(there.names(most + 1))
    return names if len(names) <= most else None


def _open(there: OpenFolder, process: ProcessId, at: RankFolder) -> FoundFiles:
    evidence = _opened(there, evidence_name(at.claimed))
    return _with_snapshots(there, FoundFiles(process, at, evidence, {}), (EARLY_SUFFIX, LATE_SUFFIX))


def _open_recording(there: OpenFolder, process: ProcessId, at: RankFolder) -> FoundFiles:
    recording = _opened(there, recording_name(at.claimed))
    found = FoundFiles(process, at, None, {}, recording)
    return _with_snapshots(there, found, (PROFILE_SNAPSHOT_SUFFIX,))


def _with_snapshots(there: OpenFolder, found: FoundFiles, suffixes: Iterable[str]) -> FoundFiles:
    snapshots: dict[str, OpenFile] = {}
    found = replace(found, snapshots=snapshots)
    try:
        for suffix in suffixes:
            with suppress(FileNotFoundError):
                snapshots[suffix] = _opened(there, snapshot_name(found.at.claimed, suffix))
    except (UnsafeFileError, OSError):
        found.close()
        raise
    return found


def _open_asked(there: OpenFolder, process: ProcessId, at: RankFolder) -> FoundFiles:
    return FoundFiles(process, at, None, {ASKED_SUFFIX: _opened(there, snapshot_name(at.claimed, ASKED_SUFFIX))})


def _opened(there: OpenFolder, name: str) -> OpenFile:
    fd, signature = there.open_checked(name)
    return OpenFile(fd, name, signature)
