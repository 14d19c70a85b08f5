"""What a policy may know of a job beside its incident: its ranks on all nodes and the scheduler's word. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from tidegauge.core.actions import CheckpointWay, JobFacts, JobTarget, RankTarget, SchedulerFacts
from tidegauge.core.fraction import cap_of_job
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.sightings import is_neighbour, job_key
from tidegauge.core.views import GpuPlace, JobView, RankSummary
from tidegauge_scheduler_hooks.scheduler_watch import scheduler_name

_Job = tuple[str, int]
"""Id and owner, over all attempts: another attempt of a job is not another job."""


class Surroundings(NamedTuple):
    """What the facts of one job need of all others: gathered once a turn, not once for each job."""

    tenants: Mapping[GpuPlace, Sequence[tuple[_Job, RankSummary]]]
    """The living ranks on each GPU that several jobs are on, and whose they are."""
    usable_bytes: Mapping[DeviceUuid, int]
    """CUDA's total of each GPU."""
    jobs_running: int


def surroundings(jobs: Sequence[JobView], usable_bytes: Mapping[DeviceUuid, int]) -> Surroundings:
    """Of all ``jobs``."""
    jobs_on = Counter(chain.from_iterable([job.places for job in jobs]))
    # Of ten thousand GPUs few have two jobs, if any: only those are looked at rank by rank.
    shared = {place for place, jobs_there in jobs_on.items() if jobs_there > 1}
    tenants: dict[GpuPlace, list[tuple[_Job, RankSummary]]] = defaultdict(list)
    for job in jobs if shared else ():
        if not shared.isdisjoint(job.places):
            who = _job(job)
            for place, index in job.living_places:
                if place in shared:
                    tenants[place].append((who, job.ranks[index]))
    return Surroundings(tenants, usable_bytes, sum([job.running for job in jobs]))


def job_facts(job: JobView, around: Surroundings, scheduler_facts: SchedulerFacts | None) -> JobFacts:
    """The facts of ``job``, one of those that ``around`` was made of."""
    living = [rank for rank in job.ranks if rank.alive]
    if scheduler_facts is not None and job.exempt:
        scheduler_facts = replace(scheduler_facts, exempt=True)
    shared_gpu = _shares_a_gpu(job, around)
    share = gpu_share(living, scheduler_facts)
    cap = cap_of_job(living, share=share, shared_gpu=shared_gpu, usable_bytes=around.usable_bytes)
    return JobFacts(
        target=_target(job, scheduler_facts),
        scheduler_facts=scheduler_facts,
        running=job.running and (scheduler_facts is None or scheduler_facts.running),
        stale=any(int(rank.identity.rank) in job.stale for rank in living) or not _is_whole(living),
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
        jobs_running=around.jobs_running,
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


def _is_whole(living: Sequence[RankSummary]) -> bool:
    """Whether every rank of the job is known. After a restart of the coordinator some nodes report before others, and
    a part of the ranks must not be asked for what all of them have to do together."""
    return len(living) >= max((rank.identity.world_size for rank in living), default=0)


def _shares_a_gpu(job: JobView, around: Surroundings) -> bool:
    """Whether a living rank of another job is on one of its GPUs."""
    me = _job(job)
    neighbours = (tenant for place in job.places for tenant in around.tenants.get(place, ()))
    return any(other != me and is_neighbour(rank, me[1]) for other, rank in neighbours)


def _job(job: JobView) -> _Job:
    return job.job_id, job_key(job).uid


def _common(values: Iterable[str | None]) -> str | None:
    """What all of them say; ``None`` if they differ, or if nobody says anything."""
    found = set(values)
    return found.pop() if len(found) == 1 else None
