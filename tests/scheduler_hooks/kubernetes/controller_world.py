"""A workload with an order on it, its own controller, and processes of ours that come and go, all over ``FakeKube``."""

from __future__ import annotations

from typing import Any

from fakes.kube import Call, FakeKube
from scheduler_hooks.kubernetes.fake_controllers import FIRST_S, FakeControllers, uid_of
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by, workload
from tidegauge.core.jobs.kubernetes import INCIDENT, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.controller.cluster_state import ClusterState
from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.reconcile import Reconciler
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.kueue import JOB_UID_LABEL, QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, OwnerKind, at
from tidegauge_scheduler_hooks.kubernetes.patches import annotate_patch, suspend_patch
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload

NAME = "train"


class TheirControllers(FakeControllers):
    """Without a stand-in for what is tested here."""

    def _finish_requeue(self, kind: OwnerKind, obj: Any) -> None:
        pass


class Process:
    """One replica of ours that leads; it remembers nothing of an earlier one."""

    def __init__(self, world: Any, *, marks: bool = True) -> None:
        self.world = world
        self.leads = True
        self.told: list[WorkKey] = []
        """The workloads that the watches said may need something."""
        self.counts = StepCounts()
        self.look = ClusterState(world.kube, world.kube, KINDS, on_key=self.told.append)
        self.reconciler = Reconciler(
            world.kube,
            self.look,
            may_act=lambda: self.leads,
            counts=self.counts,
            marks=marks,
            now_s=lambda: world.now_s,
        )

    def work(self) -> float | None:
        """One look at the workload, as a worker has it."""
        return self.reconciler.reconcile(self.world.key)

    def outcomes(self) -> dict[tuple[str, str], float]:
        """Counts by step and outcome."""
        return {(one.labels["step"], one.labels["outcome"]): one.value for one in self.counts.family().samples}


class ControllerWorld:
    """One workload. ``queued``: Kueue has a Workload for it."""

    def __init__(self, kind: str = "Job", *, injects: bool = True, queued: bool = False) -> None:
        self.kind = KINDS[kind]
        self.kube = FakeKube()
        self.now_s = float(FIRST_S)
        self.controllers = TheirControllers(self.kube)
        self.controllers.injects = injects
        self.key = WorkKey(kind, NAMESPACE, NAME)
        self.queued = queued
        self.uid = uid_of(self.kube.put(self.kind.resource, workload(kind, NAME)))
        if queued:
            self.put_queue_workload(active=True, reserved=True)
        self.controllers.advance()
        self.kube.calls.clear()

    @property
    def obj(self) -> Any:
        return self.kube.peek(self.kind.resource, NAMESPACE, NAME)

    @property
    def annotations(self) -> dict[str, str]:
        found: dict[str, str] = self.obj["metadata"].get("annotations") or {}
        return found

    @property
    def starts(self) -> int:
        return sum(len(names) for names in self.controllers.started.values())

    @property
    def pods(self) -> list[Any]:
        """All, whatever they belong to."""
        return list(self.kube.list(PODS))

    @property
    def event_reasons(self) -> list[str]:
        return [call.body["reason"] for call in self.kube.called("create", "Event")]

    def order(self, **changes: Any) -> RequeueOrder:
        said = {"decision": "d-1", "attempt": 1, "reason": "rank 1 leaks", "at": self.now_s, "mark": self.incarnation}
        return RequeueOrder(**{**said, **changes})

    @property
    def incarnation(self) -> str:
        return Workload(self.kind, self.obj).incarnation

    def requeue(self, **changes: Any) -> RequeueOrder:
        """What the head does: suspends it and says why, in one patch (with Kueue in two)."""
        order = self.order(**changes)
        obj = self.obj
        patch = suspend_patch(self.kind, obj, {REQUEUE: encode(order)}, by_kueue=self.queued)
        self.kube.patch(self.kind.resource, NAMESPACE, NAME, patch)
        if self.queued:
            self.put_queue_workload(active=False, reserved=True)
        self.kube.calls.clear()
        return order

    def annotate(self, name: str, text: str | None) -> None:
        """Somebody else, or the head, writes on it."""
        self.kube.patch(self.kind.resource, NAMESPACE, NAME, annotate_patch(self.obj, {name: text}))
        self.kube.calls.clear()

    def resumed_by_owner(self) -> None:
        """``kubectl patch``: past the log, and possible in the middle of a request of ours."""
        obj = self.obj
        assert self.kind.suspend is not None
        at(obj, self.kind.suspend[:-1])["suspend"] = False
        self.kube.put(self.kind.resource, obj)

    def put_queue_workload(self, *, active: bool, reserved: bool) -> None:
        status = "True" if reserved else "False"
        body = {
            "metadata": {
                "name": "job-train",
                "namespace": NAMESPACE,
                "ownerReferences": owned_by(self.obj),
                "labels": {JOB_UID_LABEL: self.uid},
            },
            "spec": {"active": active},
            "status": {"conditions": [{"type": "QuotaReserved", "status": status}]},
        }
        self.kube.put(QUEUE_WORKLOADS, body)

    def kueue_looks(self) -> None:
        """Kueue: suspends what is switched off and gives its quota back; admits what is switched on."""
        found = self.kube.peek(QUEUE_WORKLOADS, NAMESPACE, "job-train")
        active = found["spec"]["active"]
        obj = self.obj
        obj["spec"]["suspend"] = not active
        self.kube.put(self.kind.resource, obj)
        self.put_queue_workload(active=active, reserved=active)

    def advance(self) -> None:
        """Everybody else has a look, as often as it takes."""
        if self.queued:
            self.kueue_looks()
        for _ in range(3):
            self.controllers.advance()
        self.kube.calls.clear()

    @property
    def open_orders(self) -> set[str]:
        return {REQUEUE, STOPPED, INCIDENT} & self.annotations.keys()


class Killed(BaseException):
    """SIGKILL: nothing of the process goes on."""


def kill_before(kube: FakeKube, number: int) -> None:
    """The process dies when it is about to make its request with this number, from 0."""
    seen = iter(range(number + 1))

    def before(call: Call) -> None:
        if next(seen, None) == number:
            kube.before_call = None
            raise Killed

    kube.before_call = before


def change_before(kube: FakeKube, number: int, change: Any) -> None:
    """Somebody else is quicker than the request with this number."""
    seen = iter(range(number + 1))

    def before(call: Call) -> None:
        if next(seen, None) == number:
            kube.before_call = None
            change()

    kube.before_call = before


def writes(kube: FakeKube) -> list[Call]:
    """The requests that changed something, Events left out."""
    return [call for call in kube.calls if call.verb in ("create", "patch", "replace") and call.kind != EVENTS.kind]


def condition_of(pod: Object, name: str) -> Any:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == name), None)
