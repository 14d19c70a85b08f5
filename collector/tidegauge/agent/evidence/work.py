"""Turns the files that a rank wrote into a piece of evidence: read, check, compare, store."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.checks import read_evidence, read_snapshot
from tidegauge.agent.evidence.files import MAX_EVIDENCE_BYTES, MAX_SNAPSHOT_BYTES, FoundFiles, OpenFile
from tidegauge.agent.evidence.making import (
    NodeFacts,
    ReadSnapshot,
    asked_id,
    evidence_of_snapshot,
    evidence_of_window,
    read_trace,
)
from tidegauge.agent.evidence.snapshot_archive import SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import SnapshotStoreError
from tidegauge.agent.evidence.waiting import WaitingEvidence
from tidegauge.agent.run_dirs.folders import UnsafeFileError
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.run_dirs import ASKED_SUFFIX, EARLY_SUFFIX, LATE_SUFFIX
from tidegauge.core.text import one_line


class Done(NamedTuple):
    """The result for one rank's files."""

    evidence: Evidence
    refused: tuple[UnsafeFileError, ...] = ()
    """Snapshots that were refused; the evidence says so too."""


class EvidenceWork:
    """Processes found files, one set at a time. For one thread."""

    def __init__(self, archive: SnapshotArchive, waiting: WaitingEvidence, attempts: EvidenceAttempts) -> None:
        self._archive = archive
        self._waiting = waiting
        self._attempts = attempts

    def do(self, found: FoundFiles, node: NodeFacts, *, now_s: float, protected: Collection[str]) -> Done | None:
        """The evidence in ``found``, its snapshots stored; ``None`` if it was taken before. ``now_s`` is a monotonic
        clock, ``protected`` are keys of snapshots that must stay.

        Raises ``UnsafeFileError`` for files that are invalid, or that ended the agent before, and ``OSError``.
        """
        why_not = self._attempts.begin(found, now_unix_s=node.now_unix_s)
        if why_not is not None:
            raise UnsafeFileError("deadly", why_not)
        try:
            return self._done(found, node, now_s=now_s, protected=protected)
        finally:  # not reached by what ends the process: that is the point
            self._attempts.end(found)

    def _done(self, found: FoundFiles, node: NodeFacts, *, now_s: float, protected: Collection[str]) -> Done | None:
        task = _Task(self._archive, found, node, now_s, {*protected, *self._waiting.snapshot_keys()})
        if found.evidence is None:
            return self._snapshot(task, found.snapshots[ASKED_SUFFIX])
        said = read_evidence(found.evidence.read(MAX_EVIDENCE_BYTES), found.at.claimed)
        if self._waiting.was_taken(found.process, said.evidence_id):
            return None
        read: dict[str, ReadSnapshot] = {}
        for suffix, name in ((EARLY_SUFFIX, said.early_file), (LATE_SUFFIX, said.late_file)):
            file = found.snapshots.get(suffix)
            if name is not None and file is None:
                task.problems.append(f"{name} is gone")
            elif name is not None and file is not None:
                snapshot = task.read(file, device=said.device, keep=not said.searching)
                if snapshot is not None:
                    read[suffix] = snapshot
        evidence = evidence_of_window(said, node, read, snapshots=task.stored, problems=task.problems)
        return Done(evidence, tuple(task.refused))

    def _snapshot(self, task: _Task, file: OpenFile) -> Done | None:
        unix_ms = file.signature.mtime_ns // 1_000_000
        evidence_id = asked_id(task.node.hostname, task.found.process, unix_ms=unix_ms)
        if self._waiting.was_taken(task.found.process, evidence_id):
            return None
        snapshot = task.read(file, device=None)
        if snapshot is None:
            raise task.refused[0]
        evidence = evidence_of_snapshot(
            evidence_id,
            task.node,
            snapshot,
            at_unix_s=min(unix_ms / 1000, task.node.now_unix_s),
            snapshots=task.stored,
            problems=task.problems,
        )
        return Done(evidence)


class _Task:
    """One set of files in progress: the snapshots stored and the problems met."""

    def __init__(
        self, archive: SnapshotArchive, found: FoundFiles, node: NodeFacts, now_s: float, protected: Collection[str]
    ) -> None:
        self.found = found
        self.node = node
        self.stored: list[SnapshotRef] = []
        self.problems: list[str] = []
        self.refused: list[UnsafeFileError] = []
        self._archive = archive
        self._now_s = now_s
        self._protected = set(protected)

    def read(self, file: OpenFile, *, device: int | None, keep: bool = True) -> ReadSnapshot | None:
        """Read a snapshot and, with ``keep``, store it; ``None`` where it is refused. A store that fails costs the
        stored copy only."""
        try:
            content, packed = read_snapshot(file.read(MAX_SNAPSHOT_BYTES))
            snapshot = read_trace(packed, device)
        except (UnsafeFileError, BadTraceError) as error:
            why = one_line(str(error), MAX_TEXT_CHARS)
            self.refused.append(error if isinstance(error, UnsafeFileError) else UnsafeFileError("content", why))
            self.problems.append(f"{file.name} cannot be used: {why}")
            return None
        if not keep:
            return snapshot
        try:
            self.stored.append(self._stored(content, snapshot, file))
        except SnapshotStoreError as error:
            self.problems.append(f"{file.name} was not stored: {one_line(str(error), MAX_TEXT_CHARS)}")
        return snapshot

    def _stored(self, content: bytes, snapshot: ReadSnapshot, file: OpenFile) -> SnapshotRef:
        node = self.node
        written_unix_s = file.signature.mtime_ns / 1e9
        ref = self._archive.keep(
            node.view,
            content,
            step=node.view.step if snapshot.step is None else snapshot.step,
            at_unix_s=min(snapshot.at_unix_s or written_unix_s, node.now_unix_s),
            now_s=self._now_s,
            now_unix_s=node.now_unix_s,
            protected=self._protected,
        )
        self._protected.add(ref.key)
        return ref
