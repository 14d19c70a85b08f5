"""How runs of workloads ended: by the conditions of their owners, and by their pods as they were last seen. Pure.

Sources: ``batch/v1`` and ``v1`` in the Kubernetes API reference, "Pod disruption conditions" in its documentation, and
the types that ``owners`` names. What came first decides: when one pod of a job is deleted, the programs in the others
fail, and when one fails, its controller deletes the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidegauge.core.job_records.record import JobEnd
from tidegauge_scheduler_hooks.kubernetes.owners import (
    JOB,
    JOBSET,
    POD,
    RAYCLUSTER,
    RAYJOB,
    at,
    condition,
    controller_of,
    is_true,
    time_s,
)
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, restart_label

COMPLETE = ("Complete", "Completed", "Succeeded")
"""Conditions of owners, by kind; a RayJob has none."""
DEADLINE = "DeadlineExceeded"
"""The reason of a Job's condition ``Failed``. All others can follow from the deletion of a pod."""
DISRUPTED = "DisruptionTarget"
"""A pod's condition."""
DISRUPTIONS: Mapping[str, JobEnd] = {
    "PreemptionByScheduler": JobEnd.PREEMPTED,
    "EvictionByEvictionAPI": JobEnd.CANCELLED,
    "DeletionByTaintManager": JobEnd.FAILED,
    "DeletionByPodGC": JobEnd.FAILED,
    "TerminationByKubelet": JobEnd.FAILED,
}
"""By the reason of ``DISRUPTED``: of somebody's will, or because of its node."""
_RAY_ENDS: Mapping[str, JobEnd] = {"STOPPED": JobEnd.CANCELLED, "FAILED": JobEnd.FAILED}
"""By ``status.jobStatus`` of a RayJob that is ``Complete`` (rayjob_types.go)."""


class EndedRun(NamedTuple):
    """A run whose ranks have ended. Objects that are gone are as they were last seen."""

    workload: Workload
    """The topmost owner, with the pods that are below it now."""
    pods: tuple[Object, ...]
    """Those of the ranks."""
    links: tuple[Object, ...]
    """The owners of ``pods`` of known kinds, if that is another object: the Job below a JobSet."""
    gone: frozenset[str]
    """Uids of those that do not exist any more."""

    @property
    def is_deleted(self) -> bool:
        """Whether the workload is gone, or about to go."""
        return self.workload.uid in self.gone or bool(self.workload.obj["metadata"].get("deletionTimestamp"))


class _Outside(NamedTuple):
    """The first end of a pod that its program did not bring about."""

    at_s: float
    end: JobEnd


def end_of(run: EndedRun) -> JobEnd | None:
    """How the run ended; ``None``: it is not known, or not yet."""
    workload = run.workload
    if workload.kind is RAYCLUSTER:
        return None  # of one without a RayJob nobody says how the programs in it ended
    ended = _end_of_owner(run)
    failed, outside = _first_failure_s(run), _first_from_outside(run)
    if failed is not None and outside is not None and not _came_first(run, failed, outside):
        failed = None
    if _is_followed(run, finished=ended is not None, ended_early=failed is not None or outside is not None):
        return JobEnd.FAILED if failed is not None or _ray_retries(run) else JobEnd.REQUEUED
    if ended in (JobEnd.COMPLETED, JobEnd.CANCELLED):
        return ended
    if failed is not None:
        return JobEnd.FAILED
    if ended is JobEnd.FAILED and (outside is None or _was_too_late(run)):
        return JobEnd.FAILED
    if workload.foreign is not None and workload.replica is None:
        return None  # a controller of an unknown kind may replace what it deletes
    return _end_by_people(run) if ended is None or outside is None else outside.end


def goes_on(run: EndedRun) -> bool:
    """Whether programs of the run still run without its ranks; of a RayCluster nobody knows."""
    running = any(_phase(pod) == "Running" and pod["metadata"]["uid"] not in run.gone for pod in run.pods)
    return running and run.workload.kind is not RAYCLUSTER and end_of(run) is None


def _end_of_owner(run: EndedRun) -> JobEnd | None:
    """By its own object alone; of one that is not read, by its pods."""
    workload, obj = run.workload, run.workload.obj
    if not workload.kind.is_read:
        return JobEnd.COMPLETED if all(_succeeded(pod) for pod in run.pods) else None
    if workload.kind is POD:
        return JobEnd.COMPLETED if _succeeded(obj) else JobEnd.FAILED if _phase(obj) == "Failed" else None
    if workload.kind is RAYJOB:
        stage = at(obj, ("status", "jobDeploymentStatus"))
        if stage == "Complete":
            return _RAY_ENDS.get(at(obj, ("status", "jobStatus")), JobEnd.COMPLETED)
        return JobEnd.FAILED if stage in ("Failed", "ValidationFailed") else None
    found = next((name for name in workload.kind.final if is_true(obj, name)), None)
    return None if found is None else JobEnd.COMPLETED if found in COMPLETE else JobEnd.FAILED


def _end_by_people(run: EndedRun) -> JobEnd | None:
    """The end of a run that its controller does not call ended: its owner was deleted, suspended or scaled to none."""
    workload = run.workload
    if not run.is_deleted and not _is_switched_off(workload):
        return None
    if workload.kind is not RAYJOB and all(_succeeded(pod) for pod in run.pods):
        return JobEnd.COMPLETED
    is_suspended = not run.is_deleted and _is_suspended(workload)
    if is_suspended and workload.queue is not None and workload.stopped is None:
        return JobEnd.REQUEUED  # by Kueue, which starts it again by itself
    return JobEnd.CANCELLED


# Whether another run follows


def _is_followed(run: EndedRun, *, finished: bool, ended_early: bool) -> bool:
    workload = run.workload
    if any(workload.is_of_earlier_attempt(pod) for pod in run.pods):
        return True
    if not finished and _is_suspended(workload) and workload.order is not None:
        return True
    if workload.kind is RAYJOB:
        return _is_of_another_cluster(run)
    restarts = max((restart_label(pod) for pod in run.pods), default=0)
    now = max((restart_label(pod) for pod in workload.living), default=0)
    own = at(workload.obj, ("status", "restarts")) if workload.kind is JOBSET else 0
    return restarts < max(now, own or 0) or (ended_early and any(_follows(pod, run.pods) for pod in workload.pods))


def _is_suspended(workload: Workload) -> bool:
    return workload.kind.suspend is not None and bool(at(workload.obj, workload.kind.suspend))


def _is_switched_off(workload: Workload) -> bool:
    return _is_suspended(workload) or (workload.kind is JOB and at(workload.obj, ("spec", "parallelism")) == 0)


def _follows(pod: Object, earlier: Sequence[Object]) -> bool:
    """Whether a controller made ``pod`` after all of these that it had made."""
    made = [_created(one) for one in earlier if controller_of(one) == controller_of(pod)]
    return bool(made) and controller_of(pod) is not None and _created(pod) > max(made)


def _is_of_another_cluster(run: EndedRun) -> bool:
    """KubeRay makes a new RayCluster for each start."""
    present = at(run.workload.obj, ("status", "rayClusterName"))
    names = {link["metadata"]["name"] for link in run.links if link.get("kind") == RAYCLUSTER.name}
    return bool(names) and bool(present) and present not in names


def _ray_retries(run: EndedRun) -> bool:
    """KubeRay starts a RayJob again by itself only when it failed."""
    workload = run.workload
    ours = workload.order is not None or any(workload.is_of_earlier_attempt(pod) for pod in run.pods)
    return workload.kind is RAYJOB and not ours and bool(at(workload.obj, ("status", "failed")))


# What happened first


def _first_failure_s(run: EndedRun) -> float | None:
    """When the first pod failed by itself. The pods of a RayJob outlive it, and their ends say nothing of it."""
    pods = () if run.workload.kind is RAYJOB else run.pods
    times = (_failed_s(pod) for pod in pods if _phase(pod) == "Failed" and _disruption(pod) is None)
    return min((found for found in times if found is not None), default=None)


def _first_from_outside(run: EndedRun) -> _Outside | None:
    pods = () if run.workload.kind is RAYJOB else run.pods
    return min(filter(None, (_from_outside(pod, run.gone) for pod in pods)), default=None, key=lambda one: one.at_s)


def _came_first(run: EndedRun, failed_s: float, outside: _Outside) -> bool:
    """Times are whole seconds: in the same one a controller deletes the pods beside one that failed, and programs fail
    beside a pod whose owner is deleted, suspended or scaled to none."""
    stopped = run.is_deleted or _is_switched_off(run.workload)
    return failed_s < outside.at_s or (failed_s == outside.at_s and not stopped)


def _was_too_late(run: EndedRun) -> bool:
    conditions = (condition(obj, "Failed") for obj in (run.workload.obj, *run.links))
    return any(found is not None and found.get("reason") == DEADLINE for found in conditions)


def _from_outside(pod: Object, gone: frozenset[str]) -> _Outside | None:
    disruption = _disruption(pod)
    if disruption is not None:
        return disruption
    asked_s = _deletion_s(pod)
    if _phase(pod) in ("Succeeded", "Failed"):
        ended_s = max(_finished_s(pod), default=None)
        was_first = asked_s is not None and (ended_s is None or asked_s <= ended_s)
        return _Outside(asked_s, JobEnd.CANCELLED) if was_first and asked_s is not None else None
    if asked_s is None and pod["metadata"]["uid"] not in gone:
        return None
    return _Outside(math.inf if asked_s is None else asked_s, JobEnd.CANCELLED)


def _disruption(pod: Object) -> _Outside | None:
    """The condition ``DISRUPTED``; before Kubernetes 1.26 the kubelet only wrote ``Evicted``."""
    found = condition(pod, DISRUPTED) or {}
    if found.get("status") == "True":
        since_s = time_s(found.get("lastTransitionTime"))
        end = DISRUPTIONS.get(str(found.get("reason")), JobEnd.CANCELLED)
        return _Outside(-math.inf if since_s is None else since_s, end)
    if at(pod, ("status", "reason")) == "Evicted":
        return _Outside(min(_finished_s(pod), default=-math.inf), JobEnd.FAILED)
    return None


def _failed_s(pod: Object) -> float | None:
    """When its program failed; ``None``: not before its deletion was asked for."""
    asked_s = _deletion_s(pod)
    finished_s = list(_finished_s(pod, failed=True)) or list(_finished_s(pod))
    failed_s = min(finished_s, default=-math.inf if asked_s is None else math.inf)
    return failed_s if asked_s is None or failed_s < asked_s else None


def _deletion_s(pod: Object) -> float | None:
    """When its deletion was asked for: ``deletionTimestamp`` is the end of the grace period."""
    metadata = pod["metadata"]
    ends_s = time_s(metadata.get("deletionTimestamp"))
    return None if ends_s is None else ends_s - (metadata.get("deletionGracePeriodSeconds") or 0)


def _finished_s(pod: Object, *, failed: bool = False) -> Iterator[float]:
    """When its containers ended; ``failed``: those with another exit code than 0."""
    for status in at(pod, ("status", "containerStatuses")) or ():
        terminated: Mapping[str, Any] = at(status, ("state", "terminated")) or {}
        finished_s = time_s(terminated.get("finishedAt"))
        if finished_s is not None and (terminated.get("exitCode") or not failed):
            yield finished_s


def _succeeded(pod: Object) -> bool:
    """Whether its program ended with exit code 0, and not because it was deleted."""
    asked_s = _deletion_s(pod)
    return _phase(pod) == "Succeeded" and (asked_s is None or max(_finished_s(pod), default=-math.inf) < asked_s)


def _phase(pod: Object) -> object:
    return at(pod, ("status", "phase"))


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")
