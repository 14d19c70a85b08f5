"""Asking a rank on this host for a snapshot, over its command socket, and reading the file that it writes.

The rank may be anybody's and the command root's: what it answers and writes is read as by the node's agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.agent.evidence.checks import number_of, read_snapshot
from tidegauge.agent.evidence.files import MAX_SNAPSHOT_BYTES, OpenFile
from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.agent.run_dirs.folders import UnsafeFileError
from tidegauge.agent.run_dirs.safe_files import open_checked, opened_folder
from tidegauge.cli.attach.targets import AttachTarget
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import ASKED_SUFFIX, process_of, snapshot_name
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.core.units import format_bytes

SNAPSHOT_WITHIN_S = 60.0
"""A rank waits up to 10 s for the end of a step, then packs and writes some megabytes."""


class NoAnswerError(Exception):
    """The rank gives nothing, or what it gave is no good. The message is for people."""


class TakenSnapshot(NamedTuple):
    """A snapshot as the rank wrote it, checked."""

    rank: Optional[int]
    pid: int
    step: Optional[int]
    stall_s: Optional[float]
    """For which training stood still."""
    content: bytes
    """``core.snapshot_columns``, not compressed."""
    packed: PackedSnapshot

    def row(self, file: str) -> Sequence[str]:
        return (
            "-" if self.rank is None else str(self.rank),
            str(self.pid),
            "-" if self.step is None else str(self.step),
            file,
            format_bytes(os.path.getsize(file)),
            "-" if self.stall_s is None else f"{1000 * self.stall_s:.0f} ms",
        )


def take_snapshot(target: AttachTarget, *, max_events: int, now: bool) -> TakenSnapshot:
    """Have the rank take a snapshot, and read it. Raises ``NoAnswerError``."""
    request = {"command": "snapshot", "reason": EvidenceReason.ASKED.value, "max_events": max_events, "now": now}
    answer = ask_rank(target, request, timeout_s=SNAPSHOT_WITHIN_S)
    name = snapshot_name(claimed_by(socket_of_target(target)), ASKED_SUFFIX)
    content, packed = read_written(target, name)
    step, stall_s = number_of(packed, "step"), answer.get("stall_s")
    return TakenSnapshot(
        rank=target.seen.rank,
        pid=target.seen.process.pid,
        step=None if step is None else int(step),
        stall_s=float(stall_s) if isinstance(stall_s, (int, float)) and not isinstance(stall_s, bool) else None,
        content=content,
        packed=packed,
    )


def ask_rank(target: AttachTarget, request: Mapping[str, Any], *, timeout_s: float) -> Mapping[str, Any]:
    """The rank's answer. Raises ``NoAnswerError``, also where the rank refuses."""
    try:
        answer = ask(socket_of_target(target), request, timeout_s=timeout_s)
    except NotAskedError as error:
        raise NoAnswerError(str(error)) from error
    if "error" in answer:
        raise NoAnswerError(f"the rank refused: {answer['error']}")
    return answer


def socket_of_target(target: AttachTarget) -> ProcessSocket:
    """Raises ``NoAnswerError`` for a process without one."""
    if target.socket is None:
        raise NoAnswerError(f"it has no Tidegauge probe; run `tidegauge attach {target.seen.process.pid}` first")
    return target.socket


def claimed_by(socket: ProcessSocket) -> ProcessId:
    """What the process calls itself, in the names of its files: in a container it counts pids in its own way."""
    claimed = process_of(socket.name)
    assert claimed is not None, "a socket's name is made by core.run_dirs"
    return claimed


def read_written(target: AttachTarget, name: str) -> tuple[bytes, PackedSnapshot]:
    """A snapshot beside the rank's socket: its columns, and what they say. Raises ``NoAnswerError``."""
    try:
        return read_snapshot(read_file(target, name, MAX_SNAPSHOT_BYTES))
    except UnsafeFileError as error:
        raise NoAnswerError(f"invalid file {name}: {error}") from error


def read_file(target: AttachTarget, name: str, most_bytes: int) -> bytes:
    """A file of the rank's, all of it. Raises ``NoAnswerError``."""
    folder = socket_of_target(target).folder
    try:
        with opened_folder(folder) as there:
            fd, signature = open_checked(there.fd, name, there.uid, mount=there.mount)
            try:
                return OpenFile(fd, name, signature).read(most_bytes)
            finally:
                os.close(fd)
    except UnsafeFileError as error:
        raise NoAnswerError(f"invalid file {folder}/{name}: {error}") from error
    except OSError as error:
        raise NoAnswerError(f"cannot read {folder}/{name}: {error.strerror or error}") from error
