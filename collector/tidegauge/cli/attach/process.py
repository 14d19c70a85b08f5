"""Processes as /proc shows them, and those that a command means by a pid, a launcher's pid, or a job.

Only uid, pid, start time and name come from the kernel. The rest is under the process's control, and decides no more
than the wording of a refusal.
"""

from __future__ import annotations

import os
import re
import stat as file_kinds
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Optional

from tidegauge.agent.opening.local import LOCAL, LocalRunDir
from tidegauge.agent.opening.port import OpenFolder
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.processes.procfs import DATA_WORKER, slurm_place_of
from tidegauge.agent.run_dirs.folders import HostRunDir, RunDir, UserFolder, opened_folder
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import ProcStat, parse_proc_stat, status_numbers
from tidegauge.core.run_dirs import DEFAULT_RUN_DIRS, run_dirs, socket_name
from tidegauge.core.text import one_line
from tidegauge.osproc.processes import PROC, all_processes, descendants, descends, stat_of
from tidegauge.probe.identity import claimed_place

MAX_FILE_BYTES = 16 << 20
"""Maximum size of a file in /proc/PID: a training process maps some 5,000 pieces of files, 100 bytes each."""

_PYTHON = re.compile(
    r"python(3)\.(\d{1,2})t?$|libpython(3)\.(\d{1,2})t?d?\.so|/lib/python(3)\.(\d{1,2})t?/lib-dynload/"
)
"""Paths that contain the Python version: the interpreter, its library, the folder of its modules."""


@dataclass(frozen=True)
class SeenRunDir:
    """A ``RunDir`` in the mount namespace of a process."""

    process: ProcessId
    mount_namespace: int
    path: Path

    @property
    def mount_namespaces(self) -> Collection[int]:
        return (self.mount_namespace,)

    @property
    def tenant(self) -> None:
        return None

    def has_time(self) -> bool:
        return True

    def opened(self) -> LocalRunDir:
        with LOCAL.entered(self.process, self.mount_namespace) as namespace:
            return namespace.open(self.path)

    def opened_folder(self, uid: int) -> OpenFolder:
        with self.opened() as run_dir:
            return run_dir.folder(uid)

    def __str__(self) -> str:
        return f"/proc/{self.process.pid}/root{self.path}"


@dataclass(frozen=True)
class SeenProcess:
    """A living process. ``None`` is a value to which the kernel denies access."""

    stat: ProcStat
    uid: int
    """The effective uid; ``gid`` and ``groups`` belong to it."""
    gid: int
    groups: tuple[int, ...]
    inner_pid: int
    """The pid in its own PID namespace."""
    command: str
    """The command line, as in /proc/PID/cmdline."""
    environ: Mapping[str, str] | None
    """The environment at its start."""
    mapped: frozenset[str] | None
    """The files that are mapped into it."""
    mount_namespace: int | None
    elsewhere: bool
    """True in another mount or PID namespace: a container."""

    @property
    def process(self) -> ProcessId:
        return self.stat.process

    @property
    def rank(self) -> int | None:
        place = claimed_place(self.environ or {})
        return None if place is None else place.rank

    @property
    def python(self) -> tuple[int, int] | None:
        """The Python version, such as (3, 12); ``None`` if no Python 3 is recognised."""
        for path in sorted(self.mapped or ()):
            match = _PYTHON.search(path)
            if match is not None:
                major, minor = filter(None, match.groups())
                return int(major), int(minor)
        return None

    @property
    def torch(self) -> bool:
        return self.maps("libtorch_python.so", "libtorch_cpu.so")

    @property
    def cuda_build(self) -> bool:
        """True if its PyTorch is a build for NVIDIA or AMD GPUs."""
        return self.maps("libtorch_cuda.so", "libtorch_hip.so")

    @property
    def cuda_used(self) -> bool:
        """True if the driver's library is loaded, as by the first CUDA call."""
        return self.maps("libcuda.so.1", "libamdhip64.so")

    @property
    def data_worker(self) -> bool:
        return self.stat.name == DATA_WORKER

    def forked_from(self, other: SeenProcess) -> bool:
        """True if it is a fork of ``other`` that still runs the same program."""
        return self.stat.parent_pid == other.process.pid and self.command == other.command

    def maps(self, *names: str) -> bool:
        """True if a mapped file's name begins with one of ``names``."""
        return any(path.rpartition("/")[2].startswith(names) for path in self.mapped or ())


def see(pid: int, proc: Path = PROC) -> SeenProcess | None:
    """The process that has ``pid`` now; ``None`` if it does not exist or is a zombie."""
    status = _read(proc / str(pid) / "status")
    environ = _read(proc / str(pid) / "environ")
    maps = _read(proc / str(pid) / "maps")
    namespaces = {name: _inode(proc / str(pid) / "ns" / name) for name in ("mnt", "pid")}
    own = {name: _inode(proc / "self" / "ns" / name) for name in namespaces}
    # Last: what was read before it belonged to the same process.
    stat = parse_proc_stat(_read(proc / str(pid) / "stat") or "")
    if stat is None or stat.ended or status is None:
        return None
    uids, gids = status_numbers(status, "Uid"), status_numbers(status, "Gid")
    if len(uids) < 2 or len(gids) < 2:
        return None
    return SeenProcess(
        stat=stat,
        uid=uids[1],
        gid=gids[1],
        groups=status_numbers(status, "Groups"),
        inner_pid=(status_numbers(status, "NSpid") or (pid,))[-1],
        command=_read(proc / str(pid) / "cmdline") or "",
        environ=None if environ is None else dict(_variables(environ)),
        mapped=None if maps is None else frozenset(_mapped_files(maps)),
        mount_namespace=namespaces["mnt"],
        elsewhere=any(inode is not None and inode != own[name] for name, inode in namespaces.items()),
    )


def socket_of(seen: SeenProcess, environ: Mapping[str, str]) -> ProcessSocket | None:
    """The command socket of its probe, if it has one; ``environ`` is that of this command."""
    name = socket_name(ProcessId(seen.inner_pid, seen.process.start_ticks))
    for run_dir in _run_dirs_of(seen, environ):
        folder = UserFolder(run_dir, seen.uid)
        with suppress(OSError, UnsafeFileError), opened_folder(folder) as there:
            if file_kinds.S_ISSOCK(there.look_at(name).mode):
                return ProcessSocket(folder, seen.uid, name, seen.process)
    return None


def _run_dirs_of(seen: SeenProcess, environ: Mapping[str, str]) -> Iterable[RunDir]:
    theirs = [Path(path) for path in (*run_dirs(seen.environ or {}), *DEFAULT_RUN_DIRS)]
    ours = [Path(path) for path in (*run_dirs(environ), *DEFAULT_RUN_DIRS)]
    if not seen.elsewhere:
        yield from dict.fromkeys(HostRunDir(path) for path in ours)
    if seen.mount_namespace is not None:
        for path in dict.fromkeys(theirs):
            if path.is_absolute() and (seen.elsewhere or path not in ours):
                yield SeenRunDir(seen.process, seen.mount_namespace, path)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode(errors="replace")
    except OSError:
        return None


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _variables(environ: str) -> Iterable[tuple[str, str]]:
    for entry in environ.split("\0"):
        name, equals, value = entry.partition("=")
        if equals:
            yield name, value


def _mapped_files(maps: str) -> Iterable[str]:
    """The sixth column of proc_pid_maps(5), where it is a file's name."""
    for line in maps.split("\n"):
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/"):
            yield fields[5].removesuffix(" (deleted)")


class AttachTarget(NamedTuple):
    """A process, and the socket of its probe, if it has one."""

    seen: SeenProcess
    socket: Optional[ProcessSocket]


class NoTargetError(Exception):
    """A pid or job names no suitable process. The message is for people."""


def targets_of(word: str, environ: Mapping[str, str], *, is_job: bool) -> list[AttachTarget]:
    """The processes, at least one; a number is a pid if it exists, unless ``is_job``. Raises ``NoTargetError``."""
    if word.isascii() and word.isdigit() and not is_job:
        stat = stat_of(int(word))
        if stat is not None:
            return _of_process(int(word), environ)
    found = _ranks_among(_seen_of(_members(word)), environ)
    if not found:
        kind = "" if is_job or not word.isdigit() else f"process {word} and no "
        raise NoTargetError(
            f"no {kind}job {one_line(word)!r} with PyTorch processes on this host{_whose()}; give a pid, or run this "
            "on a node of the job (on Slurm: srun --jobid=ID --overlap tidegauge COMMAND ID)"
        )
    return found


def _of_process(pid: int, environ: Mapping[str, str]) -> list[AttachTarget]:
    given = see(pid)
    if given is None:
        raise NoTargetError(f"pid {pid} has ended (a zombie process)")
    if not _ours(given):
        raise NoTargetError(
            f"pid {pid} belongs to another user (uid {given.uid}): only that user or root can attach to it"
        )
    if given.data_worker:
        raise NoTargetError(
            f"pid {pid} is a DataLoader worker; attach to its parent instead: pid {given.stat.parent_pid}"
        )
    socket = socket_of(given, environ)
    if socket is not None:
        return [AttachTarget(given, socket)]
    family = [given, *_seen_of(stat.process.pid for stat in descendants(pid))]
    return _ranks_among(family, environ) or [AttachTarget(given, None)]


def _ranks_among(family: Sequence[SeenProcess], environ: Mapping[str, str]) -> list[AttachTarget]:
    """The training processes: those with a probe's socket, CUDA, or else PyTorch; no launchers and workers."""
    asked = {
        one.process.pid: AttachTarget(one, socket) for one in family if (socket := socket_of(one, environ)) is not None
    }
    by_pid = {one.process.pid: one for one in family}
    others = [
        one
        for one in family
        if one.torch and one.process.pid not in asked and not one.data_worker and not _is_fork(one, by_pid)
    ]
    using = [one for one in others if one.cuda_used]
    if asked or using:
        others = using
    trainers = [*asked, *(one.process.pid for one in others)]
    left = [AttachTarget(one, None) for one in others if not _is_kin_of(one.process.pid, asked, trainers)]
    return sorted([*asked.values(), *left], key=lambda target: (target.seen.rank or 0, target.seen.process.pid))


def _is_fork(one: SeenProcess, by_pid: Mapping[int, SeenProcess]) -> bool:
    parent = by_pid.get(one.stat.parent_pid)
    return parent is not None and one.forked_from(parent)


def _is_kin_of(pid: int, asked: Iterable[int], trainers: Iterable[int]) -> bool:
    """True if ``pid`` is the launcher of one of ``trainers``, or a helper of one with a probe."""
    started = any(pid != other and descends(other, pid) for other in trainers)
    return started or any(pid != other and descends(pid, other) for other in asked)


def _members(job: str) -> Iterator[int]:
    """The pids of processes whose environment or Slurm cgroup names the job."""
    for stat in all_processes():
        folder = PROC / str(stat.process.pid)
        with suppress(OSError):
            uid = folder.stat().st_uid
            place = slurm_place_of((folder / "cgroup").read_text(errors="replace"), uid=uid)
            if (place is not None and place.job_id == job) or job in _job_ids(folder.joinpath("environ").read_bytes()):
                yield stat.process.pid


def _job_ids(environ: bytes) -> set[str]:
    given = dict(entry.partition("=")[::2] for entry in environ.decode(errors="replace").split("\0"))
    task = f"{given.get('SLURM_ARRAY_JOB_ID')}_{given.get('SLURM_ARRAY_TASK_ID')}"
    return {given.get("TIDEGAUGE_JOB_ID", ""), given.get("SLURM_JOB_ID", ""), task} - {""}


def _seen_of(pids: Iterable[int]) -> list[SeenProcess]:
    return [one for pid in pids if (one := see(pid)) is not None and _ours(one)]


def _whose() -> str:
    return " that is yours" if os.geteuid() else ""


def _ours(seen: SeenProcess) -> bool:
    return os.geteuid() in (0, seen.uid)
