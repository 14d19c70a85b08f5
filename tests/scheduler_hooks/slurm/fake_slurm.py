"""A model of slurmctld behind its commands: it answers argument lists as Slurm 22.05 was seen to, word for word."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegauge.core.jobs.settings import JobSettings, changes
from tidegauge_scheduler_hooks.slurm import job_states
from tidegauge_scheduler_hooks.slurm.commands import Finished, SlurmCommands

RECORDINGS = Path(__file__).parents[2] / "data/slurm"
RELEASES = ("22.05", "24.11", "26.05")
UID = 1001
STARTED_S = 1_800_000_000

AWAY = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
AWAY_FOR_SCONTROL = "Unexpected message received for job {name}\n"
AWAY_FOR_SCANCEL = (
    "scancel: error: Kill job error on job id {name}: Unable to contact slurm controller (connect failure)\n"
)
DENIED = "Access/permission denied for job {name}\n"
DENIED_BY_SCANCEL = "scancel: error: Kill job error on job id {name}: Access/permission denied\n"
NOT_YOURS = "Invalid user id for job {name}\n"
NO_REQUEUE = "Requested operation is presently disabled for job {name}\n"
NOT_BATCH = "Only batch jobs are accepted or processed for job {name}\n"
NO_ACCOUNTING = "Slurm accounting storage is disabled\n"
NO_PRIVILEGE = (
    " sacctmgr: error: Your user doesn't have privilege to perform this action\n"
    " Error with request: Access/permission denied\n"
)
PENDING_ALREADY = "Job is pending execution for job {name}\n"
UNKNOWN_TO_SQUEUE = "slurm_load_jobs error: Invalid job id specified\n"
UNKNOWN = "Invalid job id specified for job {name}\n"


def recorded(release: str) -> bytes:
    """What ``squeue --json`` of this release printed."""
    return (RECORDINGS / f"squeue-{release}.json").read_bytes()


@dataclass
class FakeJob:
    """One job, or one task of an array."""

    job_id: int
    uid: int = UID
    state: str = "RUNNING"
    restarts: int = 0
    started_unix_s: int = STARTED_S
    held: bool = False
    batch: bool = True
    may_requeue: bool = True
    array: tuple[int, int] | None = None
    het_job_id: int = 0
    comment: str = "tidegauge:requeue"
    admin_comment: str | None = ""
    """``None``: slurmdbd does not know the job yet."""
    gres: tuple[str, ...] = ()
    goes_on: bool = False
    """It is being ended so that it can start again."""

    @property
    def name(self) -> str:
        return str(self.job_id) if self.array is None else f"{self.array[0]}_{self.array[1]}"

    @property
    def name_in_accounting(self) -> str:
        return f"{self.het_job_id}+{self.job_id - self.het_job_id}" if self.het_job_id else self.name

    @property
    def state_in_accounting(self) -> str:
        return f"CANCELLED by {self.uid}" if self.state == "CANCELLED" else self.state

    @property
    def whole(self) -> int:
        """The number of the array or the heterogeneous job that it is in, else its own."""
        return self.het_job_id or (self.array[0] if self.array else self.job_id)


class FakeSlurm(SlurmCommands):
    """``calls`` are the argument lists; ``before`` is asked first and may answer in slurmctld's place, ``after`` may do
    so once it was done: a lost answer."""

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, FakeJob] = {}
        self.calls: list[tuple[str, ...]] = []
        self.nodes = "n1|gpu:fake:2,shard:fake:8\nn2|gpu:fake:2,shard:fake:8\n"
        self.operator = True
        self.accounting = True
        self.release = "24.11.5"
        self.before: Callable[[tuple[str, ...]], Finished | None] = lambda _: None
        self.after: Callable[[tuple[str, ...]], Finished | None] = lambda _: None

    def add(self, job: FakeJob) -> FakeJob:
        self.known[job.job_id] = job
        return job

    def run(self, program: str, *args: str) -> Finished:
        call = (program, *args)
        self.calls.append(call)
        answer = self.before(call)
        if answer is None:
            answer = self._answer(program, args)
            answer = self.after(call) or answer
        return answer

    def acts(self) -> list[tuple[str, ...]]:
        """The calls that were not questions."""
        return [call for call in self.calls if call[0] not in ("squeue", "sinfo", "sacct") and "--version" not in call]

    def advance(self) -> None:
        """A while passes: what is being ended has ended, what waits for its start has begun."""
        for job in self.known.values():
            if job.state == "PENDING" and not job.held:
                job.state, job.started_unix_s = "RUNNING", job.started_unix_s + 121
            elif job.state == "COMPLETING":
                job.state = "PENDING" if job.goes_on else "CANCELLED"

    def _answer(self, program: str, args: Sequence[str]) -> Finished:
        if program == "sinfo":
            return Finished(0, self.nodes.encode(), b"")
        if "--json" in args:
            return Finished(0, json.dumps({"meta": {}, "errors": [], "jobs": self._json()}).encode(), b"")
        if job_states.FORMAT in args:
            return Finished(0, "".join(map(_state_line, self.known.values())).encode(), b"")
        if program in ("sacct", "sacctmgr"):
            return self._account(args)
        if program == "squeue":
            job = self._find(args[args.index("-j") + 1])
            return says(UNKNOWN_TO_SQUEUE) if job is None else Finished(0, _line(job), b"")
        return self._act(program, args)

    def _account(self, args: Sequence[str]) -> Finished:
        if "--version" in args:
            return Finished(0, f"slurm-wlm {self.release}\n".encode(), b"")
        if not self.accounting:
            return says(NO_ACCOUNTING)
        if args[0] == "-j":
            found = [job for job in self.known.values() if job.admin_comment is not None]
            between = next((arg.removeprefix("--delimiter=") for arg in args if arg.startswith("--delimiter=")), "|")
            rows = "".join(
                between.join((str(job.job_id), job.name_in_accounting, job.state_in_accounting, str(job.admin_comment)))
                + "\n"
                for job in found
            )
            return Finished(0, rows.encode(errors="surrogateescape"), b"")
        if not self.operator:
            return says(NO_PRIVILEGE)
        text = args[-1].removeprefix('admincomment="').removesuffix('"')
        name = args[-3].removeprefix("jobid=")
        for job in self.known.values():
            if name in (job.name_in_accounting, str(job.whole)):
                job.admin_comment = text if self.release >= "24.11" else text.lower()
        return DONE

    def _act(self, program: str, args: Sequence[str]) -> Finished:
        name = args[1 if args[0] == "update" else -1].removeprefix("jobid=")
        job = self._find(name)
        if job is None:
            return DONE if program == "scancel" else says(UNKNOWN, name)
        if program == "scancel":
            return self._cancel(job)
        if not self.operator:
            return says(NOT_YOURS if args[0] == "update" else DENIED, name)
        if args[0] == "update":
            job.comment = args[2].removeprefix("comment=")
            return DONE
        assert args[1] == "Incomplete", "else a job that has ended would be started again"
        return self._requeue(job, held=args[0] == "requeuehold")

    def _cancel(self, job: FakeJob) -> Finished:
        if not self.operator:
            return says(DENIED_BY_SCANCEL, job.name, returncode=210)
        if job.state == "RUNNING":
            job.state, job.goes_on = "COMPLETING", False
        return DONE

    def _requeue(self, job: FakeJob, *, held: bool) -> Finished:
        if not job.batch:
            return says(NOT_BATCH, job.name)
        if not job.may_requeue:
            return says(NO_REQUEUE, job.name)
        if job.state == "RUNNING":
            job.state, job.restarts, job.held, job.goes_on = "COMPLETING", job.restarts + 1, held, True
        return DONE

    def _find(self, name: str) -> FakeJob | None:
        return next((job for job in self.known.values() if job.name == name), None)

    def _json(self) -> list[dict[str, Any]]:
        return [json_entry(job) for job in self.known.values()]


DONE = Finished(0, b"", b"")


def says(text: str, name: str = "", *, returncode: int = 1) -> Finished:
    """A refusal."""
    return Finished(returncode, b"", text.format(name=name).encode())


def json_entry(job: FakeJob) -> dict[str, Any]:
    """As 22.05 prints it, with the fields of a real record."""
    entry: dict[str, Any] = copy.deepcopy(_ENTRY)
    return entry | {
        "job_id": job.job_id, "user_id": job.uid, "job_state": job.state, "restart_cnt": job.restarts,
        "start_time": job.started_unix_s, "end_time": job.started_unix_s + 3600, "batch_flag": job.batch,
        "requeue": job.may_requeue, "het_job_id": job.het_job_id, "comment": job.comment,
        "array_job_id": job.array[0] if job.array else 0, "array_task_id": job.array[1] if job.array else None,
        "gres_detail": list(job.gres),
    }  # fmt: skip


_ENTRY = json.loads(recorded("22.05").decode(errors="replace"))["jobs"][0]


def _line(job: FakeJob) -> bytes:
    fields = [
        job.job_id, "N/A" if job.array is None else job.array[1], job.uid, job.state, job.restarts, job.started_unix_s,
        0 if job.held else 4294901759, int(job.batch), int(job.may_requeue), job.het_job_id or "N/A",
    ]  # fmt: skip
    numbers = "".join(f"{value}|" for value in fields)
    return numbers.encode() + job.comment.encode(errors="surrogateescape") + b"|\n"


def _state_line(job: FakeJob) -> str:
    return f"{job.job_id}|{job.uid}|{job.state}|{job.restarts}|{0 if job.held else 4294901759}|\n"


class FakeSettingsStore:
    """``SettingsStore`` in memory."""

    def __init__(self) -> None:
        self.laid_down: dict[tuple[str, int], JobSettings] = {}
        self.puts: list[JobSettings] = []
        self.without: list[str] = []
        self.error: Exception | None = None

    def get(self, job_id: str, uid: int) -> JobSettings | None:
        return self.laid_down.get((job_id, uid))

    def put(self, settings: JobSettings) -> None:
        if self.error is not None:
            raise self.error
        self.puts.append(settings)
        self.laid_down[settings.job_id, settings.uid] = settings

    def missing_on(self, *, timeout_s: float) -> Sequence[str]:
        return self.without


def environ_of(
    store: FakeSettingsStore, job_id: str, uid: int, restarts: int, environ: Mapping[str, str]
) -> dict[str, str]:
    """What the probe of an attempt makes of ``environ``."""
    settings = store.get(job_id, uid)
    if settings is None or settings.from_restart > restarts:
        return dict(environ)
    return {**environ, **changes(settings, environ)}
