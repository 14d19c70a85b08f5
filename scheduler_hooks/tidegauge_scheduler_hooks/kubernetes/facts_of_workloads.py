"""Finds the workload of a watched job, and its facts for the policy. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tidegauge.core.incidents.actions import ActionKind, SchedulerFacts
from tidegauge.core.jobs.kubernetes import KEEP, MAY_REQUEUE, SCHEDULER
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.facts import torch_handle
from tidegauge_scheduler_hooks.kubernetes.injection.shares import gpu_share
from tidegauge_scheduler_hooks.kubernetes.owners import Owned, State, at, time_s
from tidegauge_scheduler_hooks.kubernetes.replicas import are_one
from tidegauge_scheduler_hooks.kubernetes.team_policies import SAYS_NOTHING, TeamWord
from tidegauge_scheduler_hooks.kubernetes.workloads import (
    Workload,
    annotations_of,
    restart_label,
)
from tidegauge_scheduler_hooks.ports import THROUGH_RANKS

TELLING = frozenset({ActionKind.NOTIFY, ActionKind.ANNOTATE})
STOPS = frozenset({ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL})


def find(
    view: JobView, owned: Callable[[str], Owned | None], with_pods: Callable[[Owned], Workload]
) -> Workload | None:
    """The workload that all living ranks of ``view`` are really in: their pods as the kernel says, the owner of each
    pod as the API server says (``owned``, by a pod's uid). ``None`` if there is none, or another for one of them: an
    unconfirmed rank may be of another namespace, and an action on a job reaches all of its ranks. A replica of a server
    is its first pod by name, the leader of a group, with all of them."""
    ranks = [rank for rank in view.ranks if rank.alive]
    uids = {rank.pod.pod_uid for rank in ranks if rank.pod is not None and rank.pod.job_known}
    if not ranks or any(rank.pod is None or not rank.pod.job_known for rank in ranks):
        return None
    owners = [one for one in map(owned, uids) if one is not None]
    first = min(owners, key=lambda one: str(one.obj["metadata"]["name"]), default=None)
    if first is None or len(owners) < len(uids) or not all(are_one(first, one) for one in owners):
        return None
    workload = with_pods(first)
    if workload.replica is not None:
        workload = replace(workload, pods=tuple(one.obj for one in owners))
    return workload if workload.job_id == view.job_id and not _is_past(workload, uids) else None


def is_ours(view: JobView) -> bool:
    """Whether ranks claim to be in pods."""
    return view.scheduler == SCHEDULER or any(rank.pod is not None for rank in view.ranks)


def facts_of(
    workload: Workload,
    view: JobView,
    *,
    kinds: Collection[str],
    requeue_unasked: bool,
    shared_gpu_replicas: int | None = None,
    team: TeamWord = SAYS_NOTHING,
) -> SchedulerFacts:
    """The facts. ``kinds``: those that may be acted on. ``shared_gpu_replicas``: as in ``gpu_share``. ``team``: the
    word of its namespace."""
    said, can = workload.words, can_do(workload, kinds) & team.allowed
    started = _started_s(workload)
    return SchedulerFacts(
        incarnation=workload.incarnation,
        running=workload.state is State.RUNNING,
        requeueable=ActionKind.REQUEUE in can and (requeue_unasked or team.may_requeue or MAY_REQUEUE in said),
        exempt=KEEP in said,
        restarts=workload.attempt + workload.restarts,
        partition=workload.queue,
        namespace=workload.namespace,
        started_unix_s=started,
        gpu_share=_share(workload, shared_gpu_replicas),
        can=can,
        only_told=workload.why_only_told(),
        min_severity=team.min_severity,
        min_age_s=team.min_age_s,
        handle={
            "kind": workload.kind.name,
            "name": workload.name,
            **({"foreign": workload.foreign} if workload.foreign is not None else {}),
            **torch_handle(view),
        },
    )


def can_do(workload: Workload, kinds: Collection[str]) -> frozenset[ActionKind]:
    """The actions that are possible on it; whether our role allows them shows when one is done.

    For a kind that is not acted on the owner is only notified. Where the object must not be suspended its ranks can
    still be capped, for as long as they run, and asked to save."""
    if workload.kind.name not in kinds:
        return TELLING
    return TELLING | THROUGH_RANKS | (STOPS if workload.why_not_stoppable() is None else frozenset())


def _started_s(workload: Workload) -> float | None:
    """The Unix time at which the present run's first pod was made."""
    made = [time_s(pod["metadata"].get("creationTimestamp")) for pod in workload.living]
    return min((one for one in made if one is not None), default=None)


def _is_past(workload: Workload, uids: Collection[str]) -> bool:
    """Whether these pods are of a run that has been replaced: they are seen a little longer than they live, and must
    not be taken for the next run."""
    pods = [pod for pod in workload.pods if pod["metadata"]["uid"] in uids]
    restart = max((restart_label(pod) for pod in workload.living), default=0)
    return any(workload.is_of_earlier_attempt(pod) or restart_label(pod) < restart for pod in pods)


def _share(workload: Workload, shared_gpu_replicas: int | None) -> float | None:
    """The smallest share that one of its containers requested."""
    shares = [
        gpu_share(container, annotations_of(pod), shared_gpu_replicas=shared_gpu_replicas)
        for pod in workload.living
        for container in at(pod, ("spec", "containers")) or ()
    ]
    return min((share for share in shares if share is not None), default=None)
