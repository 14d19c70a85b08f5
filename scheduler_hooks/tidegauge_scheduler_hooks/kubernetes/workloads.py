"""One workload with its pods: its annotations, and its present run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tidegauge.core.jobs.kubernetes import (
    ACTIONS,
    ATTEMPT,
    CHANGES,
    INCIDENT,
    INJECTED,
    REQUEUE,
    RESTARTING,
    STOPPED,
    job_id,
    words,
)
from tidegauge_scheduler_hooks.kubernetes.intents import (
    MAX_ATTEMPT,
    Changes,
    IncidentIntent,
    RequeueOrder,
    Stopped,
    decode_changes,
    decode_incident,
    decode_requeue,
    decode_stopped,
)
from tidegauge_scheduler_hooks.kubernetes.owners import (
    RAYJOB,
    Owned,
    OwnerKind,
    State,
    at,
    mark,
    own_restarts,
    state,
)
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.replicas import Replica, replica_with

RESTART_LABEL = "jobset.sigs.k8s.io/restart-attempt"
"""On every pod of a JobSet: the number of restarts of the whole set by JobSet's controller."""
VOLCANO_VERSION = "volcano.sh/job-version"
"""Annotation of every pod of a Volcano Job: how often all of its pods had been killed. Suspending it counts as several;
``volcano.sh/job-retry-count`` also counts restarts of single pods, beside which the others run on."""
BY_POLICY = "policy"
"""The beginning of ``INJECTED`` on pods that the MutatingAdmissionPolicy of the chart changed."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GITOPS = (
    "argocd.argoproj.io/tracking-id",
    "argocd.argoproj.io/instance",
    "kustomize.toolkit.fluxcd.io/name",
    "helm.toolkit.fluxcd.io/name",
)
"""Labels and annotations by which Argo CD and Flux know their objects, on which they revert changes."""

Intent = TypeVar("Intent")


@dataclass(frozen=True)
class Workload:
    """An object of a known kind, and its watched pods, ended ones included."""

    kind: OwnerKind
    obj: Object
    pods: tuple[Object, ...] = ()
    foreign: str | None = None
    """The kind of a controller above it that is not known."""

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def namespace(self) -> str:
        return str(self.obj["metadata"]["namespace"])

    @property
    def uid(self) -> str:
        return str(self.obj["metadata"]["uid"])

    @property
    def title(self) -> str:
        """For people: ``Job team-a/train``."""
        return f"{self.kind.name} {self.namespace}/{self.name}"

    @cached_property
    def replica(self) -> Replica | None:
        """The replica of a server that it is."""
        return replica_with(Owned(self.kind, self.obj))

    @property
    def job_id(self) -> str:
        return job_id(self.namespace, self.name if self.replica is None else self.replica.server)

    @property
    def state(self) -> State:
        return state(self.kind, self.obj)

    @property
    def living(self) -> tuple[Object, ...]:
        """Pods that have not ended: those that are being ended count."""
        return tuple(pod for pod in self.pods if at(pod, ("status", "phase")) not in ("Succeeded", "Failed"))

    @property
    def attempt(self) -> int:
        """The number of times that Tidegauge started it again."""
        return attempt_of(self.obj)

    @property
    def restarts(self) -> int:
        """The number of times that its own controller started all of it again. A TrainJob does not say; its pods do."""
        by_pods = max((restart_label(pod) for pod in self.living), default=0)
        return max(own_restarts(self.kind, self.obj), by_pods)

    @property
    def incarnation(self) -> str:
        """This very run, while it runs: another after a requeue, after a restart by its own controller, and after a
        suspension by anyone."""
        return f"{self.uid}#{self.attempt}+{self.restarts}@{mark(self.kind, self.obj)}"

    @property
    def words(self) -> frozenset[str]:
        """The owner's permissions and exemptions (``ACTIONS``), on the object or on any of its pods."""
        said = [found.get(ACTIONS) for obj in (self.obj, *self.pods) for found in (annotations_of(obj), labels_of(obj))]
        return frozenset[str]().union(*(words(text) for text in said))

    @property
    def order(self) -> RequeueOrder | None:
        return _intent(self.obj, REQUEUE, decode_requeue)

    @property
    def restarting(self) -> RequeueOrder | None:
        """The order that it was started again by, until a new pod has shown with what."""
        return _intent(self.obj, RESTARTING, decode_requeue)

    @property
    def stopped(self) -> Stopped | None:
        return _intent(self.obj, STOPPED, decode_stopped)

    @property
    def incident(self) -> IncidentIntent | None:
        return _intent(self.obj, INCIDENT, decode_incident)

    @property
    def changes(self) -> Changes:
        """The changes for all further pods."""
        return _intent(self.obj, CHANGES, decode_changes) or Changes()

    @property
    def queue(self) -> str | None:
        """Kueue's LocalQueue that it was submitted to."""
        return labels_of(self.obj).get(QUEUE_LABEL)

    @property
    def injected(self) -> bool:
        """Whether all of its pods were made by our webhook, which reads ``CHANGES``. The admission policy does not."""
        marks = [annotations_of(pod).get(INJECTED) for pod in self.living]
        return all(mark is not None and not mark.startswith(BY_POLICY) for mark in marks)

    def is_of_earlier_attempt(self, pod: Object) -> bool:
        """Whether the webhook told the pod a smaller attempt than the present one. Nobody knows that of other pods."""
        told = told_attempt(pod)
        return told is not None and told < self.attempt

    def why_only_told(self) -> str | None:
        """Why nothing is ever done to it; ``None``: that is not so."""
        if self.replica is not None:
            return f"a {self.replica.kind} serves requests, and Tidegauge never acts on one"
        return None if self.kind.is_read else f"Tidegauge has no right to a {self.kind.name}, and never acts on one"

    def why_not_stoppable(self) -> str | None:
        """Why it must not be suspended; ``None`` if it may be."""
        if self.kind.suspend is None:
            return f"a {self.kind.name} cannot be suspended"
        if self.foreign is not None:
            return f"a {self.foreign} manages it and would not notice"
        if any(sign in found for sign in GITOPS for found in (labels_of(self.obj), annotations_of(self.obj))):
            return "Argo CD or Flux keeps it in sync with a repository and would resume it"
        if self.kind is RAYJOB and not at(self.obj, ("spec", "shutdownAfterJobFinishes")):
            return "KubeRay suspends only RayJobs with shutdownAfterJobFinishes: true"
        if self.kind is RAYJOB and at(self.obj, ("spec", "clusterSelector")):
            return "KubeRay does not suspend a RayJob that uses another cluster (clusterSelector)"
        return None


# Reading


def annotations_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("annotations") or {}


def labels_of(obj: Object) -> Mapping[str, str]:
    return obj["metadata"].get("labels") or {}


def attempt_of(obj: Object) -> int:
    """The annotation ``ATTEMPT`` of a workload; 0 for an invalid one."""
    return _count(annotations_of(obj).get(ATTEMPT))


def told_attempt(pod: Object) -> int | None:
    """The attempt that the webhook told the pod; ``None``: it told none."""
    text = annotations_of(pod).get(ATTEMPT)
    return None if text is None else _count(text)


def restart_label(pod: Object) -> int:
    """How often its controller had started the whole again, as JobSet's label or Volcano's annotation says."""
    return _count(labels_of(pod).get(RESTART_LABEL)) + _count(annotations_of(pod).get(VOLCANO_VERSION))


def is_same_start(first: str, second: str) -> bool:
    """Whether two ``incarnation`` are of one run, or of runs that its own controller started without a suspension
    between them. By its object alone: pods, which tell the other starts, come through a watch that may be behind."""
    return first.partition("@")[2] == second.partition("@")[2]


def next_attempt(workload: Workload, earlier: Sequence[int]) -> int:
    """The ``ATTEMPT`` of the next run. ``earlier``: for each pod, how many of the same Job came before it; those may be
    deleted any time, so they are counted in, and no attempt has the number of an earlier one."""
    return min(max([workload.attempt, *earlier], default=0) + 1, MAX_ATTEMPT)


def _intent(obj: Object, name: str, decode: Callable[[str], Intent]) -> Intent | None:
    """Our annotation; ``None`` for none, and for one that others have broken."""
    text = annotations_of(obj).get(name)
    try:
        return None if text is None else decode(text)
    except ValueError:
        return None


def _count(text: str | None) -> int:
    """Below ``MAX_ATTEMPT``, so that there is always a next one."""
    count = int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 7 else 0
    return count if count < MAX_ATTEMPT else 0
