"""What a policy may know of a job beside its incident: its ranks on all nodes and the scheduler's word. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest

from tidegauge.core.actions import CheckpointWay, JobFacts, JobTarget, RankTarget, SchedulerFacts
from tidegauge.core.fraction import cap_of_job
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.sightings import job_key
from tidegauge.core.views import JobView, RankSummary
from tidegauge_scheduler_hooks.scheduler_watch import scheduler_name


def job_facts(
    job: JobView,
    jobs: Sequence[JobView],
    scheduler_facts: SchedulerFacts | None,
    *,
    usable_bytes: Mapping[DeviceUuid, int],
) -> JobFacts:
    """The facts of ``job``, one of ``jobs``; ``usable_bytes`` is CUDA's total of each GPU."""
    living = [rank for rank in job.ranks if rank.alive]
    shared_gpu = _shares_a_gpu(job, jobs)
    share = gpu_share(living, scheduler_facts)
    cap = cap_of_job(living, share=share, shared_gpu=shared_gpu, usable_bytes=usable_bytes)
    return JobFacts(
        target=_target(job, scheduler_facts),
        scheduler_facts=scheduler_facts,
        running=job.running and (scheduler_facts is None or scheduler_facts.running),
        stale=any(int(rank.identity.rank) in job.stale for rank in living),
        world_size=job.world_size,
        user_name=job.user_name,
        job_name=job.job_name,
        checkpoint=checkpoint_way(living),
        shared_gpu=shared_gpu,
        torch_version=_common(rank.identity.torch_version for rank in living),
        alloc_conf=_common(rank.identity.alloc_conf for rank in living),
        limit_fraction=min((rank.cap_fraction for rank in living if rank.cap_fraction is not None), default=None),
        cap_fraction=cap.fraction,
        cap_explanation=cap.explanation,
        jobs_running=sum(one.running for one in jobs),
    )


def checkpoint_way(living: Iterable[RankSummary]) -> CheckpointWay | None:
    """How a job with these ranks can be asked to save its state.

    One rank that can be asked is enough: many jobs register the callback on rank 0 alone. A callback is preferred: its
    return is a better proof than a file that looks finished.
    """
    claims = {rank.identity.checkpoint for rank in living}
    return next((way for way in (CheckpointWay.CALLBACK, CheckpointWay.SIGNAL) if way.value in claims), None)


def gpu_share(living: Iterable[RankSummary], scheduler_facts: SchedulerFacts | None) -> float | None:
    """The share of each GPU that the job asked for, by the scheduler's word; ``None``: all of it.

    Where the scheduler says nothing the ranks' own claims count, but only to their disadvantage.
    """
    if scheduler_facts is not None and scheduler_facts.gpu_share is not None:
        return scheduler_facts.gpu_share
    claims = (rank.identity.gpu_share for rank in living)
    return min((share for share in claims if share is not None and 0.0 < share < 1.0), default=None)


def _target(job: JobView, scheduler_facts: SchedulerFacts | None) -> JobTarget:
    ranks = tuple(
        RankTarget(int(rank.identity.rank), node_id, rank.process, rank.step)
        for rank, node_id in zip(job.ranks, job.rank_nodes)
        if rank.alive
    )
    if scheduler_facts is None:
        # Nothing can be done to it; the decision still says which job it was about.
        return JobTarget(job_key(job), scheduler_name(job), incarnation="", ranks=ranks)
    return JobTarget(
        job_key(job), scheduler_name(job), scheduler_facts.incarnation, ranks=ranks, handle=scheduler_facts.handle
    )


def _shares_a_gpu(job: JobView, jobs: Iterable[JobView]) -> bool:
    """Whether a living rank of another job is on one of its GPUs; another attempt of this job is not another job."""
    me = job.job_id, job_key(job).uid
    others = [one for one in jobs if (one.job_id, job_key(one).uid) != me]
    mine = _places(job)
    return any(not mine.isdisjoint(_places(other)) for other in others)


def _places(job: JobView) -> set[tuple[str | None, DeviceUuid]]:
    """Host and GPU of each living rank; the host too, because test rigs and virtual machines repeat uuids."""
    ranks = zip_longest(job.ranks, job.rank_hostnames[: len(job.ranks)])
    return {(hostname, rank.uuid) for rank, hostname in ranks if rank.alive and rank.uuid is not None}


def _common(values: Iterable[str | None]) -> str | None:
    """What all of them say; ``None`` if they differ, or if nobody says anything."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
