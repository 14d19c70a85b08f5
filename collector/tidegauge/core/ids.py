"""Identifiers of processes, jobs, attempts and ranks, typed so that a rank is never mistaken for an index.

The probe imports this inside the training process.
"""

from __future__ import annotations

from typing import NamedTuple, NewType, Optional

JobId = NewType("JobId", str)
"""The scheduler's name for a job, or one that ``tidegauge run`` made up; unique within a cluster."""

MADE_UP = "local-"
"""How the id of a job begins that no scheduler has named."""

GlobalRank = NewType("GlobalRank", int)
"""``RANK`` of ``torch.distributed``: 0 to world_size - 1 over the whole job."""

LocalRank = NewType("LocalRank", int)
"""``LOCAL_RANK`` of ``torch.distributed``: 0 to local_world_size - 1 on one node."""

DeviceUuid = NewType("DeviceUuid", str)
"""A GPU as NVML and dcgm-exporter write it: ``GPU-…`` or ``MIG-…``."""


class ProcessId(NamedTuple):
    """Identity of a process, unique even if its pid is reused.

    ``start_ticks`` is field 22 (``starttime``) of ``/proc/PID/stat``, see proc(5).
    """

    pid: int
    start_ticks: int


def made_up_job_id(hostname: str, process: ProcessId) -> JobId:
    """The id of a job that nobody has named, by the process that its ranks descend from."""
    return JobId(f"{MADE_UP}{hostname}-{process.pid}-{process.start_ticks}")


def known_as(job_id: str, given: Optional[str]) -> str:
    """The name that its owner gave a job, in place of an id that Tidegauge made up."""
    return given if given and job_id.startswith(MADE_UP) else job_id


def job_name(job_id: str, attempt: int, array: Optional[str] = None, *, group: str = "") -> str:
    """The name "4711", "4711 (123_4)" or "4711 (step 1, attempt 2)"; attempt 0 is not shown."""
    return _name_with(job_id, array, group or None, f"attempt {attempt}" if attempt else None)


def short_job_name(job_id: str, attempt: int, array: Optional[str] = None, *, group: str = "") -> str:
    """The name in its short form, for narrow columns: "4711 (2)"."""
    return _name_with(job_id, array, group or None, str(attempt) if attempt else None)


def _name_with(job_id: str, *more: Optional[str]) -> str:
    known = [one for one in more if one is not None]
    return f"{job_id} ({', '.join(known)})" if known else job_id


def scheduler_restarts(attempt: int, attempts_each: int) -> int:
    """The scheduler's restarts of a job before this attempt; attempt numbers count torchelastic's restarts, too."""
    return attempt // max(1, attempts_each)


class RankKey(NamedTuple):
    """One rank in one attempt of one job; each has its own memory series.

    ``attempt`` counts restarts from 0 (``SLURM_RESTART_COUNT``, ``TORCHELASTIC_RESTART_COUNT``); a slope
    over a restart would be wrong, so each attempt is a series of its own.
    """

    job_id: JobId
    attempt: int
    rank: GlobalRank


class RankIdentity(NamedTuple):
    """Identity that a rank claims. All of it is a *claim* until the agent has checked it.

    ``None`` is unknown. ``world_size`` is the number of ranks in the job; ``run_id`` is
    ``TORCHELASTIC_RUN_ID``; ``store`` is where its process group meets (``MASTER_ADDR:MASTER_PORT``);
    ``device_uuids`` has one entry per visible CUDA ordinal, in that order;
    ``alloc_conf`` is the allocator configuration string in force (``PYTORCH_CUDA_ALLOC_CONF`` or
    ``PYTORCH_ALLOC_CONF``); ``limit_fraction`` is what ``set_per_process_memory_fraction`` was given;
    ``checkpoint`` says how the rank can be asked to save its state (``callback``, ``signal``), or that it has none to
    save (``none``); ``gpu_share`` is the
    share of each GPU that its launcher asked for; ``attempts_each`` is how many attempts each start by the scheduler
    may take (``TORCHELASTIC_MAX_RESTARTS`` + 1): ``attempt`` counts both in one number, see ``probe.identity``;
    ``script`` is the path of ``__main__`` or ``-m module``, ``arguments`` are the script's in short (``probe.script``).
    """

    job_id: JobId
    attempt: int
    rank: GlobalRank
    local_rank: LocalRank
    world_size: int
    hostname: str
    job_name: Optional[str] = None
    run_id: Optional[str] = None
    scheduler: Optional[str] = None
    profile: str = "stats"
    device_uuids: tuple[DeviceUuid, ...] = ()
    torch_version: Optional[str] = None
    alloc_conf: Optional[str] = None
    limit_fraction: Optional[float] = None
    checkpoint: Optional[str] = None
    gpu_share: Optional[float] = None
    attempts_each: int = 1
    store: Optional[str] = None
    script: Optional[str] = None
    script_sha256: Optional[str] = None
    arguments: Optional[str] = None

    @property
    def restarts(self) -> int:
        """The scheduler's restarts, without those by the rank's own launcher."""
        return scheduler_restarts(self.attempt, self.attempts_each)

    @property
    def key(self) -> RankKey:
        return RankKey(self.job_id, self.attempt, self.rank)


class OwnedJob(NamedTuple):
    """A job in all of its attempts, with all its groups. The owner (uid, from the kernel) belongs to it: a job id is
    only a claim of the process, and nobody may make somebody else's job look guilty by claiming its id."""

    job_id: str
    uid: int


class JobKey(NamedTuple):
    """Identity of one group of ranks in one attempt of one user's job.

    ``uid`` is the kernel's: a job id outside a scheduler is only a claim. A job has several groups of ranks where
    several launches run side by side in it (two ``srun``, a trainer and an evaluator): ``core.jobs.rank_groups``.
    """

    job_id: str
    attempt: int
    uid: int
    group: str = ""
    """The group's name; empty for the first group of a job, which mostly is the only one."""

    @property
    def whole(self) -> JobKey:
        """The job with all its groups."""
        return self._replace(group="")

    @property
    def owned(self) -> OwnedJob:
        """The job in all of its attempts."""
        return OwnedJob(self.job_id, self.uid)
