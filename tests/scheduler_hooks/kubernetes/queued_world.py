"""A workload that Kueue admits, with the controllers that make its pods, our webhook in their way, and our controller
process; all over ``FakeKube``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from fakes.kube import FakeKube
from scheduler_hooks.kubernetes.kueue_neighbour import Kueue
from scheduler_hooks.kubernetes.neighbours import Neighbours
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, admitted, workload
from tidegauge.core.jobs.kubernetes import REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS
from tidegauge_scheduler_hooks.kubernetes.stops import Stops
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, Workload

LOOKS = 12
"""More than any of the ways to a standstill takes."""


class QueuedWorld:
    """One workload. ``queued``: Kueue manages it."""

    def __init__(self, kind: str, *, queued: bool = True) -> None:
        self.kind = KINDS[kind]
        self.kube = FakeKube()
        self.now_s = 1_700_000_000.0
        self.key = WorkKey(kind, NAMESPACE, "train")
        self.answer: Callable[[bytes], Mapping[str, Any]] | None = None
        """The webhook; ``None``: it is away."""
        self.neighbours = Neighbours(self.kube, self._admitted)
        self.kueue = Kueue(self.kube)
        self._queued = queued

    def submit(self, change: Callable[[Any], None] = lambda _: None) -> None:
        body = workload(self.key.kind, "train")
        change(body)
        if self.kind.name == "JobSet":
            body["spec"]["replicatedJobs"][1]["replicas"] = 1
        if self._queued:  # the webhooks of Kueue (jobframework/defaults.go)
            body["metadata"]["labels"][QUEUE_LABEL] = "gpus"
            holder = body["spec"]["runPolicy"] if self.kind.name == "PyTorchJob" else body["spec"]
            holder["suspend"] = True
        self.kube.put(self.kind.resource, body)

    def look(self, times: int = LOOKS) -> None:
        """Everybody else has a look."""
        for _ in range(times):
            self.kueue.look()
            self.neighbours.look()

    def requeue(self, **changes: Any) -> RequeueOrder:
        """What the head does."""
        said = {"decision": "d-1", "attempt": 1, "reason": "rank 1 leaks", "at": self.now_s, "mark": self.incarnation}
        order = RequeueOrder(**{**said, **changes})
        Stops(self.kube).stop(
            lambda: self.workload,
            lambda _: {REQUEUE: encode(order), STOPPED: None},
            incarnation=order.mark,
            decision_id=order.decision,
        )
        return order

    @property
    def obj(self) -> Any:
        return self.kube.peek(self.kind.resource, NAMESPACE, "train")

    @property
    def workload(self) -> Workload:
        return Workload(self.kind, self.obj)

    @property
    def incarnation(self) -> str:
        return self.workload.incarnation

    @property
    def pods(self) -> list[Any]:
        return list(self.kube.list(PODS))

    @property
    def events(self) -> list[tuple[str, str]]:
        """Reasons and notes of all of ours."""
        return [(event["reason"], event["note"]) for event in self.kube.list(EVENTS)]

    def _admitted(self, pod: Mapping[str, Any], namespace: str) -> Any:
        return copy.deepcopy(dict(pod)) if self.answer is None else admitted(self.answer, pod, namespace)
