"""Turns the files that a rank wrote into a piece of evidence or a memory profile: read, check, compare, store."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from tidegauge.agent.evidence.attempts import EvidenceAttempts
from tidegauge.agent.evidence.checks import number_of, read_evidence, read_recording, read_snapshot
from tidegauge.agent.evidence.files import MAX_EVIDENCE_BYTES, MAX_SNAPSHOT_BYTES, FoundFiles, OpenFile
from tidegauge.agent.evidence.making import (
    NodeFacts,
    ReadSnapshot,
    asked_id,
    evidence_of_snapshot,
    evidence_of_window,
    read_trace,
)
from tidegauge.agent.evidence.profile_making import advice_facts, rank_profile_of
from tidegauge.agent.evidence.snapshot_archive import SnapshotArchive
from tidegauge.agent.evidence.snapshot_store import SnapshotStoreError
from tidegauge.agent.evidence.waiting import WaitingEvidence, WaitingProfiles
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.profile.apart import profile_apart
from tidegauge.core.evidence import Evidence, SnapshotRef
from tidegauge.core.evidence.rank_evidence import MAX_TEXT_CHARS
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.rank_recording import MAX_RECORDING_BYTES, RankRecording
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.run_dirs import ASKED_SUFFIX, EARLY_SUFFIX, LATE_SUFFIX, PROFILE_SNAPSHOT_SUFFIX
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.core.text import one_line


class Done(NamedTuple):
    """The result for one rank's files."""

    piece: Evidence | RankProfile
    refused: tuple[UnsafeFileError, ...] = ()
    """Snapshots that were refused; the piece says so too."""


class EvidenceWork:
    """Processes found files, one set at a time. For one thread."""

    def __init__(
        self,
        archive: SnapshotArchive,
        waiting: WaitingEvidence,
        attempts: EvidenceAttempts,
        profiles: WaitingProfiles | None = None,
    ) -> None:
        """``profiles``: ``None``: none are made."""
        self._archive = archive
        self._waiting = waiting
        self._attempts = attempts
        self._profiles = profiles

    def do(self, found: FoundFiles, node: NodeFacts, *, now_s: float, protected: Collection[str]) -> Done | None:
        """The evidence or the profile in ``found``, its snapshots stored; ``None`` if it was taken before. ``now_s`` is
        a monotonic clock, ``protected`` are keys of snapshots that must stay.

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
        profiles = frozenset() if self._profiles is None else self._profiles.snapshot_keys()
        task = _Task(self._archive, found, node, now_s, {*protected, *self._waiting.snapshot_keys(), *profiles})
        if found.recording is not None:
            return None if self._profiles is None else self._profile(task, found.recording, self._profiles)
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

    def _profile(self, task: _Task, file: OpenFile, waiting: WaitingProfiles) -> Done | None:
        said = read_recording(file.read(MAX_RECORDING_BYTES), task.found.at.claimed)
        if waiting.was_taken(task.found.process, said.recording_id):
            return None
        beside = task.found.snapshots.get(PROFILE_SNAPSHOT_SUFFIX)
        if said.snapshot_file is not None and beside is None:
            task.problems.append(f"{said.snapshot_file} is gone")
        profile = None if said.snapshot_file is None or beside is None else task.profile(beside, said)
        made = rank_profile_of(
            said, task.node, profile, at_unix_s=min(file.signature.mtime_ns / 1e9, task.node.now_unix_s),
            snapshots=task.stored, problems=task.problems,
        )  # fmt: skip
        return Done(made, tuple(task.refused))


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
        opened = self._opened(file)
        if opened is None:
            return None
        content, packed = opened
        try:
            snapshot = read_trace(packed, device)
        except BadTraceError as error:
            self._refuse(file, error)
            return None
        if keep:
            self._keep(content, snapshot, file)
        return snapshot

    def profile(self, file: OpenFile, said: RankRecording) -> StepProfile | None:
        """Store a recording's snapshot and profile it; ``None`` where it is refused."""
        opened = self._opened(file)
        if opened is None:
            return None
        content, packed = opened
        self._keep(content, ReadSnapshot(None, said.ended_step, number_of(packed, "unix_s")), file)
        del packed
        try:
            return profile_apart(said, content, advice_facts(self.node))
        except ValueError as error:
            self._refuse(file, error)
            return None

    def _opened(self, file: OpenFile) -> tuple[bytes, PackedSnapshot] | None:
        try:
            return read_snapshot(file.read(MAX_SNAPSHOT_BYTES))
        except UnsafeFileError as error:
            self._refuse(file, error)
            return None

    def _refuse(self, file: OpenFile, error: Exception) -> None:
        why = one_line(str(error), MAX_TEXT_CHARS)
        self.refused.append(error if isinstance(error, UnsafeFileError) else UnsafeFileError("content", why))
        self.problems.append(f"{file.name} cannot be used: {why}")

    def _keep(self, content: bytes, snapshot: ReadSnapshot, file: OpenFile) -> None:
        try:
            self.stored.append(self._stored(content, snapshot, file))
        except SnapshotStoreError as error:
            self.problems.append(f"{file.name} was not stored: {one_line(str(error), MAX_TEXT_CHARS)}")

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
