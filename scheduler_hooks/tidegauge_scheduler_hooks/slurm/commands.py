"""Runs Slurm's commands, as the only module; ``jobs_json`` and ``squeue_rows`` read the answers.

Commands, not slurmrestd: they are on every node, and a REST ``DELETE`` by a user without rights froze slurmctld on two
releases, as did ``scancel --ctld``, which is never used here (ADR 11). No shell; text that belongs to a job (a comment,
a name) is one argument or one field.
"""

from __future__ import annotations

import os
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.text import one_line
from tidegauge_scheduler_hooks.ports import ChangedError, PermanentError, SchedulerError, TemporaryError
from tidegauge_scheduler_hooks.slurm import job_states
from tidegauge_scheduler_hooks.slurm.job_states import JobState
from tidegauge_scheduler_hooks.slurm.jobs_json import SlurmJob, read_jobs
from tidegauge_scheduler_hooks.slurm.squeue_rows import FORMAT, SqueueRow, parse_look

TIMEOUT_S = 30.0
"""For a whole command. Without a slurmctld squeue gives up after 18 s and the others after 9 s; with one that hangs,
``MessageTimeout`` (10 s) counts twice."""
MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""About 12,000 jobs of two nodes as 24.11 prints them, each with every core of its nodes."""
MAX_NAMED = 1000
"""Jobs named to squeue. With more all jobs are asked for, which costs slurmctld the same."""


CASE_KEPT_SINCE = (24, 11)
"""By sacctmgr; of the releases between 22.05 and this one it is not known."""
ACCOUNTED = "JobIDRaw,JobID,State,AdminComment"
"""For ``sacct --format``. A text may hold line ends and whole rows: a delimiter that nobody knows before tells where a
row begins."""


class Accounted(NamedTuple):
    """One job, task of an array or part of a heterogeneous job, as sacct(1) reports it."""

    name: str
    """``7``, ``7_2`` or ``7+0``. The number alone means all tasks or parts to sacctmgr, where it is that of the last
    task or the first part."""
    state: str
    """One of its last run's (squeue(1), JOB STATE CODES)."""
    admin_comment: str
    """Invalid UTF-8 is kept by ``surrogateescape``."""


class SlurmCommands:
    """Slurm's commands. ``bin_dir`` holds them, or wrappers for another user or cluster (default: ``PATH``); ``conf``
    is their ``SLURM_CONF`` (default: this process's, or Slurm's own). Thread-safe.

    Every method raises ``TemporaryError``, ``PermanentError`` and ``ChangedError`` as in ``_ERRORS``. A ``name`` is a
    ``SlurmJob.name``."""

    def __init__(self, bin_dir: Path | None = None, conf: Path | None = None, *, timeout_s: float = TIMEOUT_S) -> None:
        self._bin_dir = bin_dir
        self._timeout_s = timeout_s
        # None of our caller's SLURM_* and SQUEUE_*: they are options, and a service started in a job has many of them.
        self._environ = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
        conf_text = os.environ.get("SLURM_CONF") if conf is None else str(conf)
        if conf_text:
            self._environ["SLURM_CONF"] = conf_text

    def jobs(self, job_ids: Sequence[int]) -> list[SlurmJob]:
        """The jobs that slurmctld knows of these, in one call. Others may be among them: 22.05 prints all jobs in any
        case, and an array's number stands for all of its tasks."""
        named = ["-j", ",".join(map(str, sorted(job_ids)))] if len(job_ids) <= MAX_NAMED else []
        asked = "list its jobs"
        try:
            answer = self._ask(asked, "squeue", "--all", "--json", *named)
        except ChangedError:
            return []  # the only job that was named is none
        try:
            return read_jobs(answer)
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
            answer = self._ask(asked, "squeue", "--all", "--noheader", "-t", "all", "-j", name, "-O", FORMAT)
        except ChangedError:
            return None
        if not answer:
            return None
        try:
            return parse_look(answer)
        except ValueError as error:
            raise TemporaryError(f"Slurm: cannot {asked}: unexpected answer from squeue: {error}") from error

    def states(self, job_ids: Sequence[int]) -> list[JobState]:
        """The states of those that slurmctld knows of these jobs, ended ones too, in one call; others may be among
        them."""
        named = ["-j", ",".join(map(str, sorted(job_ids)))] if len(job_ids) <= MAX_NAMED else []
        asked = "say how jobs ended"
        try:
            answer = self._ask(asked, "squeue", "--all", "--noheader", "-t", "all", *named, "-O", job_states.FORMAT)
        except ChangedError:
            return []  # the only job that was named is none
        try:
            return job_states.parse_states(answer)
        except ValueError as error:
            raise TemporaryError(f"Slurm: cannot {asked}: unexpected answer from squeue: {error}") from error

    def requeue(self, name: str) -> None:
        """End a run and have the job wait for another. ``Incomplete``: a job that has ended meanwhile, or already
        waits, stays as it is, without an error."""
        self._ask(f"requeue job {name}", "scontrol", "requeue", "Incomplete", name)

    def requeue_held(self, name: str) -> None:
        """Requeue a job that then waits until its owner or an admin releases it."""
        self._ask(f"requeue job {name} and hold it", "scontrol", "requeuehold", "Incomplete", name)

    def cancel(self, name: str) -> None:
        """End a job for good. An unknown job is no error."""
        self._ask(f"cancel job {name}", "scancel", name)

    def set_comment(self, name: str, comment: str) -> None:
        """Set a job's comment; ``comment`` is encoded as ``SqueueRow.comment``."""
        # A NUL ends an argument; no comment that Slurm has told us holds one.
        self._ask(f"set the comment of job {name}", "scontrol", "update", f"jobid={name}", f"comment={comment}")

    def accounted(self, job_id: int) -> Accounted | None:
        """A job in slurmdbd; ``None``: it does not know the job, or the task (yet, some seconds after its end)."""
        between = f"|{secrets.token_hex(8)}|"
        answer = self._ask(
            f"read the AdminComment of job {job_id}",
            "sacct", "-j", str(job_id), "-X", "-n", "-P", f"--delimiter={between}", "--format", ACCOUNTED,
        )  # fmt: skip
        fields = (r"^(\d+)", r"([0-9_+]+)", r"([A-Z_]+)[^|\n]*", "")
        row = re.compile(re.escape(between).join(fields), re.MULTILINE)
        parts = row.split(answer.decode(errors="surrogateescape"))[1:]
        for number, name, state, text in zip(parts[::4], parts[1::4], parts[2::4], parts[3::4]):
            if int(number) == job_id:
                return Accounted(name, state, text.removesuffix("\n"))
        return None

    def set_admin_comment(self, name: str, text: str) -> None:
        """Set it, which Operators may, for an ``Accounted.name``. ``text`` holds no quotes and no backslashes: sacctmgr
        takes quotes away."""
        change = ("where", f"jobid={name}", "set", f'admincomment="{text}"')
        self._ask(f"set the AdminComment of job {name}", "sacctmgr", "--immediate", "modify", "job", *change)

    def accounting_keeps_case(self) -> bool:
        """Whether sacctmgr sets texts as they are: that of 22.05 makes small letters of them, 24.11 does not."""
        found = re.search(rb"(\d+)\.(\d+)", self._ask("tell its release", "sacctmgr", "--version"))
        return found is not None and (int(found[1]), int(found[2])) >= CASE_KEPT_SINCE

    def run(self, program: str, *args: str) -> Finished:
        """Run one command. Raises ``OverrunError``, ``OSError``."""
        argv = [os.fsencode(argument) for argument in (self._path(program), *args)]
        return run_bounded(argv, environ=self._environ, timeout_s=self._timeout_s, most_bytes=MAX_ANSWER_BYTES)

    def _path(self, program: str) -> str:
        if self._bin_dir is not None:
            return str(self._bin_dir / program)
        return shutil.which(program) or program

    def _ask(self, asked: str, program: str, *args: str) -> bytes:
        """The standard output of a command that succeeded."""
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


_CHUNK_BYTES = 1 << 16


class Finished(NamedTuple):
    """The result of a command."""

    returncode: int
    """Negative: the signal that ended it."""
    stdout: bytes
    stderr: bytes


class OverrunError(Exception):
    """The command took too long or printed too much, and was killed with all its children. The message says which."""


def run_bounded(argv: Sequence[bytes], *, environ: Mapping[str, str], timeout_s: float, most_bytes: int) -> Finished:
    """Run ``argv`` without a shell and without input, in a session of its own; ``most_bytes`` holds for each output.

    Raises ``OverrunError``, and ``OSError`` if it cannot be started.
    """
    deadline_s = time.monotonic() + timeout_s
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environ),
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            stdout, stderr = _read(process, deadline_s, most_bytes)
            return Finished(process.wait(max(0.0, deadline_s - time.monotonic())), stdout, stderr)
        except subprocess.TimeoutExpired as error:
            raise OverrunError(f"no answer within {timeout_s:g} s") from error
        finally:
            # A leader that was not waited for keeps its number, so that the group is its own.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)


def _read(process: subprocess.Popen[bytes], deadline_s: float, most_bytes: int) -> tuple[bytes, bytes]:
    """Both outputs, until all their holders have closed them. Raises ``TimeoutExpired``, ``OverrunError``."""
    assert process.stdout is not None
    assert process.stderr is not None
    outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    with selectors.DefaultSelector() as selector:
        for descriptor in outputs:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise subprocess.TimeoutExpired(process.args, 0)
            for key, _ in selector.select(left_s):
                chunk = os.read(key.fd, _CHUNK_BYTES)
                if not chunk:
                    selector.unregister(key.fd)
                outputs[key.fd] += chunk
                if len(outputs[key.fd]) > most_bytes:
                    raise OverrunError(f"the answer is longer than {most_bytes} bytes")
    stdout, stderr = outputs.values()
    return bytes(stdout), bytes(stderr)


MAX_ERROR_CHARS = 300

NO_SUCH_JOB = "Invalid job id specified"

RIGHTS = (
    "the user of this service must be the job's owner, a coordinator of its account or Operator: "
    "sacctmgr modify user USER set AdminLevel=Operator (docs/slurm_actions.md)"
)

_ERRORS: Mapping[str, tuple[Callable[[str], SchedulerError], str]] = {
    # Not the run that it was a moment ago.
    NO_SUCH_JOB: (ChangedError, ""),
    "Job/step already completing or completed": (ChangedError, ""),
    "Job has already finished": (ChangedError, ""),
    "Job is pending execution": (ChangedError, ""),
    # Never.
    "Access/permission denied": (PermanentError, RIGHTS),
    "Invalid user id": (PermanentError, RIGHTS),
    "Requested operation is presently disabled": (
        PermanentError,
        "the job was submitted with --no-requeue, or the site has JobRequeue=0; its owner may change that: "
        "scontrol update jobid=N requeue=1",
    ),
    "Only batch jobs are accepted or processed": (PermanentError, "srun and salloc jobs cannot be requeued"),
    "parameter too long": (PermanentError, ""),
    "Your user doesn't have privilege": (PermanentError, RIGHTS),
    "accounting storage is disabled": (PermanentError, "AdminComment is kept by slurmdbd"),
    "not running a supported accounting_storage plugin": (PermanentError, "AdminComment is kept by slurmdbd"),
    "Unable to process configuration file": (PermanentError, "set slurm_conf (docs/settings.md)"),
}
"""The error by a part of the text, and advice for the reader. Any other text may be retried: without slurmctld
scontrol(1) says "Unexpected message received", and the others "Unable to contact slurm controller" or "Socket timed
out"."""


def check(finished: Finished, asked: str) -> None:
    """Raise the error that a refusal means. ``asked`` names the request for people: "requeue job 7"."""
    said = one_line(" ".join(finished.stderr.decode(errors="replace").split()), MAX_ERROR_CHARS)
    for text, (error, advice) in _ERRORS.items():
        if text in said:
            raise error(f"Slurm: cannot {asked}: {said}" + (f"; {advice}" if advice else ""))
    if finished.returncode != 0:
        raise TemporaryError(f"Slurm: cannot {asked}: {said or f'exit status {finished.returncode}'}")
