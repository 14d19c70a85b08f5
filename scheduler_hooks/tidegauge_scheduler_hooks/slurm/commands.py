"""The only place that runs Slurm's commands. What they answer is read by ``jobs_json``, ``job_looks``, ``refusals``.

Commands, not slurmrestd: they are on every node, and a REST ``DELETE`` by somebody without rights froze slurmctld on
two releases, as did ``scancel --ctld``, which is never used here (ADR 11). No shell; what is a job's own (a comment, a
name) is one argument or one field.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, SchedulerError, TemporaryError
from tidegauge_scheduler_hooks.slurm import jobs_json
from tidegauge_scheduler_hooks.slurm import squeue_rows as job_looks
from tidegauge_scheduler_hooks.slurm.bounded_run import Finished, OverrunError, run_bounded
from tidegauge_scheduler_hooks.slurm.jobs_json import SlurmJob
from tidegauge_scheduler_hooks.slurm.refusals import check
from tidegauge_scheduler_hooks.slurm.squeue_rows import SqueueRow

TIMEOUT_S = 30.0
"""For a whole command. Without a slurmctld squeue gives up after 18 s and the others after 9 s; with one that hangs,
``MessageTimeout`` (10 s) counts twice."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""About 12,000 jobs of two nodes as 24.11 prints them, each with every core of its nodes."""
MAX_NAMED = 1000
"""Jobs that squeue is told to name. With more of them all jobs are asked for, which costs slurmctld the same."""


class SlurmCommands:
    """``bin_dir`` is where the commands are, wrappers for another user or cluster perhaps (default: ``PATH``); ``conf``
    is their ``SLURM_CONF`` (default: this process's, or Slurm's own). Thread-safe.

    Every method raises ``TemporaryError``, ``PermanentError`` and ``ChangedError`` as ``refusals`` says. Those that
    take a ``name`` want ``SlurmJob.name``.
    """

    def __init__(self, bin_dir: Path | None = None, conf: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._bin_dir = bin_dir
        self._timeout_s = timeout_s
        # None of our caller's SLURM_* and SQUEUE_*: they are options, and a service started in a job has many of them.
        self._environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        conf_text = os.environ.get("SLURM_CONF") if conf is None else str(conf)
        if conf_text:
            self._environ["SLURM_CONF"] = conf_text

    def jobs(self, job_ids: Sequence[int]) -> list[SlurmJob]:
        """What slurmctld knows of these jobs, in one call. Others may be among them: 22.05 prints all jobs whatever it
        is told, and an array's number stands for all of its tasks."""
        named = ["-j", ",".join(map(str, sorted(job_ids)))] if len(job_ids) <= MAX_NAMED else []
        asked = "list its jobs"
        try:
            answer = self._ask(asked, "squeue", "--all", "--json", *named)
        except ChangedError:
            return []  # the only job that was named is none
        try:
            return jobs_json.read_jobs(answer)
        except ValueError as error:
            raise TemporaryError(f"Slurm: cannot {asked}: unexpected answer from squeue: {error}") from error

    def node_gres(self) -> dict[str, str]:
        """The GPUs, shards and so on of every node (``Gres`` of slurm.conf(5)), in one call."""
        answer = self._ask("list its nodes", "sinfo", "--all", "--noheader", "-N", "-o", "%N|%G")
        lines = (line.partition("|") for line in answer.decode(errors="replace").splitlines())
        return {name: gres for name, _, gres in lines}

    def look(self, name: str) -> SqueueRow | None:
        """One job as it is now; ``None``: slurmctld does not know it (any more, five minutes after its end)."""
        asked = f"describe job {name}"
        try:
            answer = self._ask(
                asked, "squeue", "--all", "--noheader", "-t", "all", "-j", name, "-O", job_looks.FORMAT
            )  # fmt: skip
        except ChangedError:
            return None
        if not answer:
            return None
        try:
            return job_looks.parse_look(answer)
        except ValueError as error:
            raise TemporaryError(f"Slurm: cannot {asked}: unexpected answer from squeue: {error}") from error

    def requeue(self, name: str) -> None:
        """End a run and have the job wait for another. ``Incomplete``: a job that has ended meanwhile, or waits
        already, stays as it is, and that is no error."""
        self._ask(f"requeue job {name}", "scontrol", "requeue", "Incomplete", name)

    def requeue_held(self, name: str) -> None:
        """The same, but the job will wait until its owner or an admin releases it."""
        self._ask(f"requeue job {name} and hold it", "scontrol", "requeuehold", "Incomplete", name)

    def cancel(self, name: str) -> None:
        """End a job for good. A job that nobody knows is no error."""
        self._ask(f"cancel job {name}", "scancel", name)

    def set_comment(self, name: str, comment: str) -> None:
        """``comment`` as ``JobLook.comment`` has it."""
        # A NUL ends an argument; no comment that Slurm has told us holds one.
        self._ask(f"set the comment of job {name}", "scontrol", "update", f"jobid={name}", f"comment={comment}")

    def run(self, program: str, *args: str) -> Finished:
        """Run one command. Raises ``OverrunError``, ``OSError``."""
        argv = [os.fsencode(argument) for argument in (self._path(program), *args)]
        return run_bounded(argv, environ=self._environ, timeout_s=self._timeout_s, most_bytes=MAX_ANSWER_BYTES)

    def _path(self, program: str) -> str:
        if self._bin_dir is not None:
            return str(self._bin_dir / program)
        return shutil.which(program) or program

    def _ask(self, asked: str, program: str, *args: str) -> bytes:
        """The standard output of a command that did what it was asked to."""
        try:
            finished = self.run(program, *args)
        except OverrunError as error:
            raise TemporaryError(f"Slurm: cannot {asked}: {program} was stopped: {error}") from error
        except (OSError, ValueError) as error:
            raise _cannot_start(program, asked, error) from error
        check(finished, asked)
        return finished.stdout


def _cannot_start(program: str, asked: str, error: Exception) -> SchedulerError:
    if isinstance(error, (FileNotFoundError, PermissionError)):
        return PermanentError(
            f"Slurm: cannot {asked}: {program} cannot be run here ({error.strerror}); install Slurm's commands, or set "
            "slurm_bin_dir (docs/settings.md)"
        )
    if isinstance(error, ValueError):
        return PermanentError(f"Slurm: cannot {asked}: {error}")
    return TemporaryError(f"Slurm: cannot {asked}: {program} cannot be started ({error})")
