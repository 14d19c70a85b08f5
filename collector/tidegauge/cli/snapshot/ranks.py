"""Snapshots of ranks on this host: requested over the command socket, read from the rank's file, and written again.

The rank may be another user's and the command root's, so answers and files are checked as by the node agent.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from tidegauge.agent.evidence.checks import number_of, read_snapshot
from tidegauge.agent.evidence.files import MAX_SNAPSHOT_BYTES, OpenFile
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.agent.run_dirs.folders import opened_folder
from tidegauge.analysis.bad_traces import BadTraceError
from tidegauge.analysis.snapshots.packed import from_packed
from tidegauge.analysis.snapshots.reading import write_packed
from tidegauge.analysis.snapshots.torch_pickle import torch_pickle
from tidegauge.cli.attach.process import AttachTarget
from tidegauge.cli.errors import CommandError, UsageError
from tidegauge.cli.output import write_output
from tidegauge.core.evidence import EvidenceReason
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import ASKED_SUFFIX, process_of, snapshot_name
from tidegauge.core.snapshot_columns import PackedSnapshot
from tidegauge.core.units import format_bytes

SNAPSHOT_WITHIN_S = 60.0
"""Timeout of a snapshot, seconds: a rank waits up to 10 s for the end of a step, then packs and writes megabytes."""
PICKLES = (".pickle", ".pkl")
PACKED = ".snap.zst"


class NoAnswerError(Exception):
    """A rank did not answer, refused, or sent an invalid answer. The message is for people."""


class TakenSnapshot(NamedTuple):
    """A checked snapshot of a rank."""

    rank: Optional[int]
    pid: int
    step: Optional[int]
    stall_s: Optional[float]
    """The time for which training was paused, seconds."""
    content: bytes
    """The columns of ``core.snapshot_columns``, not compressed."""
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
    """The command socket. Raises ``NoAnswerError`` for a process without one."""
    if target.socket is None:
        raise NoAnswerError(f"it has no Tidegauge probe; run `tidegauge attach {target.seen.process.pid}` first")
    return target.socket


def claimed_by(socket: ProcessSocket) -> ProcessId:
    """The process id in the names of the process's files: in a container, it is the one of its PID namespace."""
    claimed = process_of(socket.name)
    assert claimed is not None, "a socket's name is made by core.run_dirs"
    return claimed


def read_written(target: AttachTarget, name: str) -> tuple[bytes, PackedSnapshot]:
    """The bytes and columns of a snapshot file beside the rank's socket. Raises ``NoAnswerError``."""
    try:
        return read_snapshot(read_file(target, name, MAX_SNAPSHOT_BYTES))
    except UnsafeFileError as error:
        raise NoAnswerError(f"invalid file {name}: {error}") from error


def read_file(target: AttachTarget, name: str, most_bytes: int) -> bytes:
    """The content of a file of the rank. Raises ``NoAnswerError``."""
    folder = socket_of_target(target).folder
    try:
        with opened_folder(folder) as there:
            fd, signature = there.open_checked(name)
            try:
                return OpenFile(fd, name, signature).read(most_bytes)
            finally:
                os.close(fd)
    except UnsafeFileError as error:
        raise NoAnswerError(f"invalid file {folder}/{name}: {error}") from error
    except OSError as error:
        raise NoAnswerError(f"cannot read {folder}/{name}: {error.strerror or error}") from error


class Outputs(NamedTuple):
    """The output files: ``file`` for one snapshot, or a folder for several."""

    folder: Path
    file: Optional[Path] = None

    def write(self, snapshot: TakenSnapshot, *, with_pid: bool = False) -> str:
        """Write a snapshot, and return the name of its file, with the pid if ``with_pid``. Raises ``CommandError``."""
        path = self.file or self.folder / self._name(snapshot, with_pid=with_pid)
        try:
            if path.suffix in PICKLES:
                content = torch_pickle(from_packed(snapshot.packed))
            else:
                content = write_packed([snapshot.content])
        except BadTraceError as error:
            raise CommandError(str(error)) from error
        write_output(path, content)
        return str(path)

    def _name(self, snapshot: TakenSnapshot, *, with_pid: bool) -> str:
        pid = f"pid-{snapshot.pid}"
        who = pid if snapshot.rank is None else f"rank-{snapshot.rank}" + f"-{pid}" * with_pid
        when = "" if snapshot.step is None else f"-step-{snapshot.step}"
        return f"{who}{when}{PACKED}"


def outputs_of(given: Optional[Path], *, several: bool) -> Outputs:
    """The output files that ``-o`` names. Raises ``CommandError``."""
    if given is None:
        return Outputs(Path())
    if given.is_dir():
        return Outputs(given)
    if several:
        raise UsageError(f"{given} is not a folder, and there are several ranks: use --rank R, or a folder")
    if not given.name.endswith((*PICKLES, PACKED)):
        raise UsageError(
            f"{given} is not a folder; a file name must end in {PACKED}, or in {PICKLES[0]} for a PyTorch snapshot"
        )
    return Outputs(given.parent, given)
