"""The processes that ``tidegauge attach`` and ``snapshot`` mean by a pid, a launcher's pid, or a job, from /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Optional

from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.processes.procfs import slurm_place_of
from tidegauge.cli.attach.process import SeenProcess, see, socket_of
from tidegauge.core.text import one_line
from tidegauge.osproc.processes import PROC, all_processes, descendants, descends, stat_of


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
    found = _ranks_among(_seen(_members(word)), environ)
    if not found:
        kind = "" if is_job or not word.isdigit() else f"process {word} and no "
        raise NoTargetError(
            f"no {kind}job {one_line(word)!r} with PyTorch processes on this host{_whose()}; give a pid, or run this "
            "on a node of the job: srun --jobid=ID --overlap tidegauge attach ID"
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
    family = [given, *_seen(stat.process.pid for stat in descendants(pid))]
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
    """Whether ``pid`` is the launcher of one of ``trainers``, or a helper of one with a probe."""
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


def _seen(pids: Iterable[int]) -> list[SeenProcess]:
    return [one for pid in pids if (one := see(pid)) is not None and _ours(one)]


def _whose() -> str:
    return " that is yours" if os.geteuid() else ""


def _ours(seen: SeenProcess) -> bool:
    return os.geteuid() in (0, seen.uid)
