"""Identity claim: the job and rank that this process claims, a pure function of its environment and a few facts.

Launchers disagree about names, and some set them after the program has started (Ray Train), so the probe calls this
when it attaches, not at interpreter start. All of it is a claim: the agent checks whatever the kernel can confirm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Optional

from tidegauge.core.alloc_conf import conf_names
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity, made_up_job_id
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE, SHARE_VARIABLE, parse_fraction
from tidegauge.core.text import one_line
from tidegauge.probe.process_facts import OwnProcessFacts
from tidegauge.probe.script import NOT_READ, ScriptFacts

_MAX_COUNT = 1 << 24
MAX_ATTEMPT = 1 << 31
"""The maximum that a ring can hold."""
MAX_KEPT_STARTS = 1000
"""Starts by one `tidegauge run` inside a Slurm job, which has no bound of its own."""


class TorchFacts(NamedTuple):
    """Facts that only the running torch has."""

    version: Optional[str] = None
    device_uuids: tuple[DeviceUuid, ...] = ()
    distributed: Optional[tuple[int, int]] = None
    """``(rank, world size)`` of the default process group, once there is one."""


class RankPlace(NamedTuple):
    """A rank's place in its job."""

    rank: int
    local_rank: int
    world_size: int


_LAUNCHERS = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", ""),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE", ""),
    # Slurm sets these in a batch script too, which runs once and is not a task of N: only srun sets a step.
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_ID"),
)
"""Names of rank, local rank and world size by launcher, and a variable that must be there for them to count. torchrun's
come first: a launcher inside a Slurm step or an MPI task is the one that knows the ranks."""


def claimed_place(environ: Mapping[str, str]) -> Optional[RankPlace]:
    """The rank that the environment names, or ``None`` for a process that no known launcher started.

    A set of variables that contradicts itself (a rank outside its world, text for a number) is passed over.
    """
    for rank_name, local_name, size_name, needed in _LAUNCHERS:
        if needed and _count(environ.get(needed)) is None:  # a batch script's own step is 4294967291
            continue
        rank = _count(environ.get(rank_name))
        size = _count(environ.get(size_name))
        if rank is None or size is None or not rank < size:
            continue
        local = _count(environ.get(local_name))
        return RankPlace(rank, local if local is not None and local <= 1 << 16 else 0, size)
    return None


def _place_of_pod(environ: Mapping[str, str]) -> Optional[RankPlace]:
    """The place of a lone process by its pod's in a LeaderWorkerSet's group (``AddLWSVariables`` in pkg/utils/pod of
    LWS 0.9.0): until torch.distributed is set up, and where it never is, the group's pods are its ranks."""
    rank, size = _count(environ.get("LWS_WORKER_INDEX")), _count(environ.get("LWS_GROUP_SIZE"))
    return None if rank is None or size is None or not rank < size else RankPlace(rank, 0, size)


def identify(
    environ: Mapping[str, str],
    process: OwnProcessFacts,
    torch: TorchFacts,
    *,
    level: str,
    limit_fraction: Optional[float] = None,
    checkpoint: Optional[str] = None,
    script: ScriptFacts = NOT_READ,
) -> RankIdentity:
    """The identity that a ring carries. Always gives one: a lone process is rank 0 of 1 of a job of its own.

    ``checkpoint`` is ``checkpoint.callbacks.Means.way``.
    """
    place = claimed_place(environ)
    if place is None and torch.distributed is not None:
        rank, size = torch.distributed
        place = RankPlace(rank, _count(environ.get("LOCAL_RANK")) or 0, size)
    place = place or _place_of_pod(environ) or RankPlace(0, 0, 1)
    attempt, attempts_each = _attempts(environ)
    return RankIdentity(
        job_id=JobId(_job_id(environ, process)),
        attempt=attempt,
        rank=GlobalRank(place.rank),
        local_rank=LocalRank(place.local_rank),
        world_size=place.world_size,
        hostname=_text(process.hostname) or "localhost",
        job_name=_first(environ, "TIDEGAUGE_JOB_NAME", "SLURM_JOB_NAME") or _text(process.script),
        run_id=_run_id(environ),
        scheduler=_scheduler(environ),
        profile=level,
        device_uuids=torch.device_uuids,
        torch_version=_text(torch.version),
        alloc_conf=_first(environ, *conf_names(torch.version)),
        limit_fraction=limit_fraction,
        checkpoint=checkpoint,
        gpu_share=parse_fraction(environ.get(SHARE_VARIABLE, "")),
        attempts_each=attempts_each,
        store=_store(environ),
        script=script.script,
        script_sha256=script.script_sha256,
        arguments=script.arguments,
    )


def _job_id(environ: Mapping[str, str], process: OwnProcessFacts) -> str:
    given = _first(environ, "TIDEGAUGE_JOB_ID")
    if given:
        return given
    array, task = _first(environ, "SLURM_ARRAY_JOB_ID"), _first(environ, "SLURM_ARRAY_TASK_ID")
    if array and task:
        return f"{array}_{task}"  # as squeue writes it
    slurm = _first(environ, "SLURM_JOB_ID")
    if slurm:
        return slurm
    if _spans_nodes(environ):
        # Launchers of different nodes have no process in common. The port is left out beside a run id: an elastic
        # restart takes a new one, and the job would seem to be another.
        run_id = _run_id(environ)
        if run_id:
            return f"torchrun-{run_id}"
        address, port = _first(environ, "MASTER_ADDR"), _first(environ, "MASTER_PORT")
        if address and port:
            return f"torchrun-{address}-{port}"
    ray = _first(environ, "RAY_JOB_ID")
    if ray and claimed_place(environ) is not None:
        return f"ray-{ray}"
    root = _job_root(environ, process)
    return made_up_job_id(_text(process.hostname) or "localhost", root)


def _job_root(environ: Mapping[str, str], process: OwnProcessFacts) -> ProcessId:
    """The process that all ranks of a job on one node have in common, and no other job has."""
    if "TORCHELASTIC_RUN_ID" in environ:
        return process.parent or process.process  # the torchrun agent, which also outlives a restart
    if claimed_place(environ) is not None or "LOCAL_RANK" in environ:
        # accelerate, deepspeed and Lightning: rank 0 may be the parent of the others, the group is the same
        return process.group_leader or process.process
    return process.spawned_by or process.process


def _spans_nodes(environ: Mapping[str, str]) -> bool:
    groups, size = _count(environ.get("GROUP_WORLD_SIZE")), _count(environ.get("WORLD_SIZE"))
    local = _count(environ.get("LOCAL_WORLD_SIZE"))
    if groups is not None:
        return groups > 1
    return size is not None and local is not None and size > local


def _attempts(environ: Mapping[str, str]) -> tuple[int, int]:
    """Restarts so far, and how many attempts each start by the scheduler may take.

    Everything that restarts counts in one number that never repeats: the elastic agent within what `tidegauge run` (or
    another that sets ``TIDEGAUGE_ATTEMPT``) started, and that within what Slurm started. A restart further out begins
    the counts within it again, so it weighs as many attempts as they may come to. In a pod ``TIDEGAUGE_ATTEMPT`` is the
    workload's, and no `tidegauge run` restarts anything.
    """
    restarts = _count(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0
    each = max(_count(environ.get("TORCHELASTIC_MAX_RESTARTS")) or 0, restarts) + 1
    kept = _count(environ.get(ATTEMPT_VARIABLE))
    if "SLURM_JOB_ID" not in environ:
        return min((kept or 0) * each + restarts, MAX_ATTEMPT), min(each, MAX_ATTEMPT)
    if kept is not None:
        restarts += min(kept, MAX_KEPT_STARTS - 1) * each
        each *= MAX_KEPT_STARTS
    requeues = _count(environ.get("SLURM_RESTART_COUNT")) or 0
    return min(requeues * each + restarts, MAX_ATTEMPT), min(each, MAX_ATTEMPT)


def _run_id(environ: Mapping[str, str]) -> Optional[str]:
    run_id = _first(environ, "TORCHELASTIC_RUN_ID")
    return run_id if run_id and run_id.lower() != "none" else None  # "none" is torchrun's word for not given


def _store(environ: Mapping[str, str]) -> Optional[str]:
    address, port = _first(environ, "MASTER_ADDR"), _first(environ, "MASTER_PORT")
    return _text(f"{address}:{port}") if address and port else None


def _scheduler(environ: Mapping[str, str]) -> str:
    if "SLURM_JOB_ID" in environ:
        return "slurm"
    if "KUBERNETES_SERVICE_HOST" in environ:
        return "kubernetes"
    # Ray's workers have the first, the entrypoint of a submitted job and what it starts (torchrun) the second.
    return "ray" if {"RAY_JOB_ID", "RAY_JOB_CONFIG_JSON_ENV_VAR"} & set(environ) else "local"


def _first(environ: Mapping[str, str], *names: str) -> Optional[str]:
    for name in names:
        value = _text(environ.get(name))
        if value:
            return value
    return None


def _text(value: Optional[str]) -> Optional[str]:
    """A text that a reader of the ring accepts: printable (a variable may hold newlines) and not too long."""
    return None if value is None else one_line(value.strip(), 1024)


def _count(value: Optional[str]) -> Optional[int]:
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 9:
        return None
    count = int(value)
    return count if count <= _MAX_COUNT else None
