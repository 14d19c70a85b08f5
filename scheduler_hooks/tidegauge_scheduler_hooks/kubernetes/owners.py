"""The kinds of workloads, with their fields for the same things, and the owners of pods. A table, and pure functions.

Sources: the Kubernetes API reference for ``batch/v1``, and the types of JobSet (``jobset_types.go``), Kubeflow Trainer
(``trainjob_types.go``), the Training Operator (``PyTorchJob``), KubeRay (``rayjob_types.go``) and Volcano (``job.go``).
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from tidegauge.core.jobs.kubernetes import job_id, namespace_of
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, Object, Resource

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", "TrainJob")
PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs", "PyTorchJob")
RAYJOBS = Resource("ray.io", "v1", "rayjobs", "RayJob")
RAYCLUSTERS = Resource("ray.io", "v1", "rayclusters", "RayCluster")
VOLCANO_JOBS = Resource("batch.volcano.sh", "v1alpha1", "jobs", "Job")

Path = tuple[str | int, ...]
MAX_OWNERS = 6
"""Links of a chain that are followed; the longest known one is Pod, Job, JobSet, TrainJob."""
MAX_UID_CHARS = 64
"""Servers make them of 36."""
HARMLESS_OWNERS = frozenset({("batch", "CronJob")})
"""Controllers above a workload that tolerate its suspension: a CronJob only makes its next Job later."""


class State(str, Enum):
    """The state of a workload, by its own object alone."""

    STARTING = "starting"
    """It is to run, and its controller has not begun."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It is to be suspended, and is not yet."""
    SUSPENDED = "suspended"
    FINISHED = "finished"


@dataclass(frozen=True)
class OwnerKind:
    """One kind of workload."""

    resource: Resource
    suspend: Path | None
    """The field that suspends it; ``None``: it cannot be suspended."""
    final: frozenset[str] = frozenset()
    """Conditions that say that it has ended."""
    runs: tuple[str, ...] = ()
    """Status fields that change when the same object is started again."""
    restarts: str | None = None
    """The status field in which its own controller counts starts."""
    busy: Callable[[Mapping[str, Any]], bool] = lambda _status: False
    """Whether its status shows that something of it still runs."""
    alias: str | None = None
    """Its name here, where another kind has the same."""
    is_read: bool = True
    """Whether its object is read. Else it is known by its pods' references alone, and its owner is only notified."""

    @property
    def name(self) -> str:
        return self.alias or self.resource.kind


class Owned(NamedTuple):
    """The owner of a pod."""

    kind: OwnerKind
    """The kind of the topmost known owner; ``Pod`` where none is known."""
    obj: Object
    foreign: str | None = None
    """The kind of an unknown controller above it, which may not tolerate actions on it."""

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])


def _any_active(field: str) -> Callable[[Mapping[str, Any]], bool]:
    """A function that tells whether one of the parts that ``field`` lists (or names) has something active."""

    def busy(status: Mapping[str, Any]) -> bool:
        parts = status.get(field) or ()
        return any((part or {}).get("active") for part in (parts.values() if isinstance(parts, Mapping) else parts))

    return busy


SUSPEND: Path = ("spec", "suspend")
POD = OwnerKind(PODS, None)
JOB = OwnerKind(
    JOBS,
    SUSPEND,
    final=frozenset({"Complete", "Failed"}),
    runs=("startTime",),
    restarts="failed",
    busy=lambda status: bool(status.get("active") or status.get("terminating")),
)
JOBSET = OwnerKind(
    JOBSETS,
    SUSPEND,
    final=frozenset({"Completed", "Failed"}),
    restarts="restarts",
    busy=_any_active("replicatedJobsStatus"),
)
TRAINJOB = OwnerKind(TRAINJOBS, SUSPEND, final=frozenset({"Complete", "Failed"}), busy=_any_active("jobsStatus"))
PYTORCHJOB = OwnerKind(
    PYTORCHJOBS,
    ("spec", "runPolicy", "suspend"),
    final=frozenset({"Succeeded", "Failed"}),
    runs=("startTime",),
    busy=_any_active("replicaStatuses"),
)
RAYJOB = OwnerKind(RAYJOBS, SUSPEND, runs=("startTime", "rayClusterName"), restarts="failed")
RAYCLUSTER = OwnerKind(RAYCLUSTERS, None)
VOLCANO_JOB = OwnerKind(VOLCANO_JOBS, None, alias="VolcanoJob", is_read=False)

KINDS: Mapping[str, OwnerKind] = {kind.name: kind for kind in (JOB, JOBSET, TRAINJOB, PYTORCHJOB, RAYJOB)}
"""Kinds that can be acted on, by the names of the setting ``kubernetes_kinds``."""
BY_NAME: Mapping[str, OwnerKind] = {**KINDS, **{kind.name: kind for kind in (RAYCLUSTER, VOLCANO_JOB, POD)}}
_UNREAD: Mapping[tuple[str, str], OwnerKind] = {
    (kind.resource.group, kind.resource.kind): kind for kind in BY_NAME.values() if not kind.is_read
}
_LINKS: Mapping[str, tuple[OwnerKind, ...]] = {"JobSet": (JOB,), "TrainJob": (JOBSET, JOB), "RayJob": (RAYCLUSTER, JOB)}
"""The kinds between a pod and an owner of that kind."""


def watched_kinds(enabled: Iterable[str]) -> Mapping[str, OwnerKind]:
    """The kinds to watch where these are acted on: they, and the kinds between them and their pods.

    Raises ``ValueError`` for a kind that is not in ``KINDS``."""
    names = list(enabled)
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise ValueError(f"{unknown[0][:60]!r} is not a supported kind; choose from {', '.join(KINDS)}")
    found = {name: KINDS[name] for name in names}
    return {**{link.name: link for name in names for link in _LINKS.get(name, ())}, **found}


def links_below(kind: OwnerKind) -> tuple[OwnerKind, ...]:
    """The kinds between a workload of that kind and its pods."""
    return _LINKS.get(kind.name, ())


def topmost(
    pod: Object, known: Mapping[str, OwnerKind], lookup: Callable[[Resource, str, OwnerReference], Object | None]
) -> Owned | None:
    """The owner of ``pod``, by the owner references with ``controller: true``, as far as ``known`` reaches.

    ``lookup`` (resource, namespace, reference) finds an owner. ``None``: one of a known kind is not found; it has gone,
    or has not been seen yet. What a reference says is its author's word, so only its uid counts, in the pod's own
    namespace."""
    namespace = pod["metadata"].get("namespace", "")
    found = Owned(POD, pod)
    for _ in range(MAX_OWNERS):
        reference = controller_of(found.obj)
        if reference is None:
            return found
        kind = known.get(reference.kind)
        if kind is None or kind.resource.group != reference.group:
            unread = _UNREAD.get((reference.group, reference.kind))
            if unread is not None and found.kind is POD and _is_plausible(reference, namespace):
                return Owned(unread, unread_object(namespace, reference.name, reference.uid))
            harmless = (reference.group, reference.kind) in HARMLESS_OWNERS
            return found if harmless else found._replace(foreign=reference.kind)
        owner = lookup(kind.resource, namespace, reference)
        if (
            owner is None
            or owner["metadata"].get("namespace") != namespace
            or owner["metadata"]["uid"] != reference.uid
        ):
            return None
        found = Owned(kind, owner)
    return found._replace(foreign=found.kind.name)


def _is_plausible(reference: OwnerReference, namespace: str) -> bool:
    """An API server stores any text as name and uid of an owner."""
    uid = reference.uid.replace("-", "")
    named = namespace_of(job_id(namespace, reference.name)) is not None
    return named and uid.isascii() and uid.isalnum() and len(reference.uid) <= MAX_UID_CHARS


class OwnerReference(NamedTuple):
    """The owner reference of a controller."""

    group: str
    kind: str
    name: str
    uid: str
    version: str


def controller_of(obj: Object) -> OwnerReference | None:
    """The one owner that manages the object."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            group, _, version = reference.get("apiVersion", "").rpartition("/")
            kind, name, uid = (reference.get(key, "") for key in ("kind", "name", "uid"))
            return OwnerReference(group, kind, name, uid, version)
    return None


def unread_object(namespace: str, name: str, uid: str) -> Object:
    """An object of which nothing is known but what a reference says."""
    return {"metadata": {"namespace": namespace, "name": name, "uid": uid}}


def at(obj: Any, path: Path) -> Any:
    """The value at ``path``; ``None`` if there is none."""
    for step in path:
        if isinstance(step, int):
            obj = obj[step] if isinstance(obj, Sequence) and step < len(obj) else None
        else:
            obj = obj.get(step) if isinstance(obj, Mapping) else None
        if obj is None:
            return None
    return obj


def time_s(text: object) -> float | None:
    """Unix seconds of a ``Time`` of the API (``2026-01-31T12:00:00Z``)."""
    try:
        return float(calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ")))
    except ValueError:
        return None


def timestamp(unix_s: float) -> str:
    """A ``Time`` of the API."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(unix_s))


def condition(obj: Object, name: str) -> Mapping[str, Any] | None:
    conditions = at(obj, ("status", "conditions")) or ()
    return next((one for one in conditions if one.get("type") == name), None)


def is_true(obj: Object, name: str) -> bool:
    found = condition(obj, name)
    return found is not None and found.get("status") == "True"


def state(kind: OwnerKind, obj: Object) -> State:
    """The state of the workload, as its controller last wrote it. It does not show that the pods are gone."""
    if kind is POD:
        return _pod_state(obj)
    if kind is RAYJOB:
        return _ray_state(obj)
    status = obj.get("status") or {}
    if any(is_true(obj, name) for name in kind.final):
        return State.FINISHED
    waits = is_true(obj, "Suspended")
    if kind.suspend is not None and at(obj, kind.suspend):
        return State.SUSPENDED if waits and not kind.busy(status) else State.STOPPING
    if waits or ("startTime" in kind.runs and not status.get("startTime")):
        return State.STARTING
    return State.RUNNING


def _ray_state(obj: Object) -> State:
    """``status.jobDeploymentStatus`` (rayjob_types.go)."""
    stage = at(obj, ("status", "jobDeploymentStatus")) or ""
    if stage in ("Complete", "Failed", "ValidationFailed"):
        return State.FINISHED
    if at(obj, SUSPEND):
        return State.SUSPENDED if stage == "Suspended" else State.STOPPING
    if stage in ("", "Suspended"):
        return State.STARTING
    return State.STOPPING if stage == "Suspending" else State.RUNNING


def _pod_state(pod: Object) -> State:
    phase = at(pod, ("status", "phase"))
    if phase in ("Succeeded", "Failed"):
        return State.FINISHED
    if pod["metadata"].get("deletionTimestamp"):
        return State.STOPPING
    return State.RUNNING if phase == "Running" else State.STARTING


def runs_one_pod(kind: OwnerKind, obj: Object) -> bool:
    """A Job with one pod at a time: each further pod is another start of the whole."""
    return kind is JOB and (at(obj, ("spec", "parallelism")) or 1) == 1 and (at(obj, ("spec", "completions")) or 1) == 1


def own_restarts(kind: OwnerKind, obj: Object) -> int:
    """The number of times that its own controller has started all of it again."""
    if kind.restarts is None or (kind is JOB and not runs_one_pod(kind, obj)):
        return 0
    count = at(obj, ("status", kind.restarts))
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0


def mark(kind: OwnerKind, obj: Object) -> str:
    """A text that changes when the same object runs again after it was suspended, by anyone."""
    resumed = condition(obj, "Suspended")
    times = [str(at(obj, ("status", name)) or "") for name in kind.runs]
    if resumed is not None and resumed.get("status") == "False":
        times.append(str(resumed.get("lastTransitionTime") or ""))
    return "/".join(times)
