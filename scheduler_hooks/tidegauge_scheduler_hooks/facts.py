"""The facts of a job for the policy: its ranks on all nodes and the scheduler's answer. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from tidegauge.core.ids import DeviceUuid, OwnedJob
from tidegauge.core.incidents.actions import CheckpointWay, GroupTarget, JobFacts, JobTarget, RankTarget, SchedulerFacts
from tidegauge.core.incidents.observations import is_neighbour
from tidegauge.core.jobs.fraction import cap_of_job
from tidegauge.core.jobs.kubernetes import SCHEDULER as KUBERNETES
from tidegauge.core.views import GpuPlace, JobView, RankSummary
from tidegauge_scheduler_hooks.scheduler_watch import LOCAL, scheduler_name

Value = TypeVar("Value", str, float)


class Surroundings(NamedTuple):
    """Facts about all other jobs that the facts of one job need: gathered once a turn, not once for each job."""

    neighbours: Mapping[GpuPlace, Sequence[tuple[OwnedJob, RankSummary]]]
    """The living ranks on each GPU that several jobs use, with their jobs."""
    usable_bytes: Mapping[DeviceUuid, int]
    """CUDA's total of each GPU."""
    jobs_running: int
    groups: Mapping[str, Sequence[JobView]]
    """All living groups of ranks of each job id that has several."""


def surroundings(jobs: Sequence[JobView], usable_bytes: Mapping[DeviceUuid, int]) -> Surroundings:
    jobs_on = Counter(chain.from_iterable([job.places for job in jobs]))
    # Of ten thousand GPUs few have two jobs, if any: only those are looked at rank by rank.
    shared = {place for place, jobs_there in jobs_on.items() if jobs_there > 1}
    neighbours: dict[GpuPlace, list[tuple[OwnedJob, RankSummary]]] = defaultdict(list)
    for job in jobs if shared else ():
        if not shared.isdisjoint(job.places):
            who = job.key.owned
            for place, index in job.living_places:
                if place in shared:
                    neighbours[place].append((who, job.ranks[index]))
    groups: dict[str, list[JobView]] = defaultdict(list)
    for job in jobs:
        if job.running:
            groups[job.job_id].append(job)
    several = {job_id: views for job_id, views in groups.items() if len(views) > 1}
    return Surroundings(neighbours, usable_bytes, sum([job.running for job in jobs]), several)


def job_facts(job: JobView, around: Surroundings, scheduler_facts: SchedulerFacts | None) -> JobFacts:
    """The facts of ``job``, one of those that ``around`` was made of."""
    living = [rank for rank in job.ranks if rank.alive]
    others = end_with(job, around.groups.get(job.job_id, ()))
    if scheduler_facts is not None and (job.exempt or any(view.exempt for view in others)):
        scheduler_facts = replace(scheduler_facts, exempt=True)
    target = _target(job, others, scheduler_facts)
    ways = {group.called: group_way(view) for group, view in zip(target.groups, (job, *others) if living else others)}
    unasked = tuple(sorted(called for called, way in ways.items() if way is None))
    shared_gpu = _shares_a_gpu(job, around)
    share = gpu_share(living, scheduler_facts)
    cap = cap_of_job(living, share=share, shared_gpu=shared_gpu, usable_bytes=around.usable_bytes)
    return JobFacts(
        target=target,
        scheduler_facts=scheduler_facts,
        running=job.running and (scheduler_facts is None or scheduler_facts.running),
        stale=any(map(_is_stale, (job, *others))),
        world_size=job.world_size,
        user_name=job.user_name,
        job_name=job.job_name,
        checkpoint=None if unasked else _common_way(list(ways.values())),
        groups_without_checkpoint=unasked if others else (),
        shared_gpu=shared_gpu,
        torch_version=common(rank.identity.torch_version for rank in living),
        alloc_conf=common(rank.identity.alloc_conf for rank in living),
        limit_fraction=min((rank.cap_fraction for rank in living if rank.cap_fraction is not None), default=None),
        cap_fraction=cap.fraction,
        cap_explanation=cap.explanation,
        jobs_running=around.jobs_running,
    )


def group_way(job: JobView) -> CheckpointWay | None:
    """How the living ranks of one group can be asked to save their state.

    One rank that can be asked is enough: many jobs register the callback on rank 0 alone. A callback is preferred: its
    return is a better proof than a file that looks finished. All ranks have to say that there is nothing to save."""
    claims = {rank.identity.checkpoint for rank in job.ranks if rank.alive}
    if claims == {CheckpointWay.NONE.value}:
        return CheckpointWay.NONE
    return next((way for way in (CheckpointWay.CALLBACK, CheckpointWay.SIGNAL) if way.value in claims), None)


def _common_way(ways: Sequence[CheckpointWay | None]) -> CheckpointWay | None:
    """The first way of groups that can all be asked and have something to save."""
    return next((way for way in ways if way is not CheckpointWay.NONE), ways[0] if ways else None)


def end_with(job: JobView, jobs: Iterable[JobView]) -> list[JobView]:
    """The living ones of ``jobs`` that are other groups of ranks of ``job``: they end when it is ended.

    Attempts do not matter: a launcher may have restarted a group. A workload of Kubernetes has containers of several
    uids; a ``tidegauge run`` ends its descendants and nothing else."""
    scheduler = scheduler_name(job)
    others = [view for view in jobs if view is not job and view.running and view.job_id == job.job_id]
    if scheduler == KUBERNETES:
        return [view for view in others if scheduler_name(view) == KUBERNETES]
    others = [view for view in others if view.key.uid == job.key.uid]
    if scheduler != LOCAL:
        return others
    if job.launch is None:
        return []
    kept = job.launch.process, job.launch_node
    return [view for view in others if any((r.launch, node) == kept for r, node in zip(view.ranks, view.rank_nodes))]


def gpu_share(living: Iterable[RankSummary], scheduler_facts: SchedulerFacts | None) -> float | None:
    """The share of each GPU that the job requested, as the scheduler says; ``None``: all of it.

    Where the scheduler says nothing the ranks' own claims count, but only to their disadvantage."""
    if scheduler_facts is not None and scheduler_facts.gpu_share is not None:
        return scheduler_facts.gpu_share
    claims = (rank.identity.gpu_share for rank in living)
    return min((share for share in claims if share is not None and 0.0 < share < 1.0), default=None)


def _target(job: JobView, others: Iterable[JobView], scheduler_facts: SchedulerFacts | None) -> JobTarget:
    # Without the scheduler's word nothing can be done to it; the decision still says which job it was about.
    return JobTarget(
        job.key,
        scheduler_name(job),
        incarnation="" if scheduler_facts is None else scheduler_facts.incarnation,
        ranks=_living_ranks(job),
        handle={} if scheduler_facts is None else scheduler_facts.handle,
        group_name=job.group_name,
        others=tuple(GroupTarget(view.key, view.group_name, _living_ranks(view)) for view in others),
    )


def _living_ranks(job: JobView) -> tuple[RankTarget, ...]:
    return tuple(
        RankTarget(int(rank.identity.rank), node_id, rank.process, rank.step)
        for rank, node_id in zip(job.ranks, job.rank_nodes)
        if rank.alive
    )


def _is_stale(job: JobView) -> bool:
    """Whether a living rank is not reporting, or not every rank is known. After a restart of the coordinator some nodes
    report before others, and a part of the ranks must not be asked for what all of them have to do together."""
    living = [rank for rank in job.ranks if rank.alive]
    known = len(living) >= max((rank.identity.world_size for rank in living), default=0)
    return not known or any(int(rank.identity.rank) in job.stale for rank in living)


def _shares_a_gpu(job: JobView, around: Surroundings) -> bool:
    """Whether a living rank of another job is on one of its GPUs."""
    me = job.key.owned
    for place, index in job.living_places:
        mine = job.ranks[index].tenant
        if any(other != me and is_neighbour(rank, mine) for other, rank in around.neighbours.get(place, ())):
            return True
    return False


def common(values: Iterable[Value | None]) -> Value | None:
    """The value that all of them are; ``None`` if they differ, or if there is none."""
    found = set(values)
    return found.pop() if len(found) == 1 else None


def torch_handle(job: JobView) -> dict[str, Any]:
    """``torch_version`` for ``JobTarget.handle``: the version that living ranks report; empty if they differ."""
    known = (rank.identity.torch_version for rank in job.ranks if rank.alive)
    version = common(version for version in known if version is not None)
    return {} if version is None else {"torch_version": version}
