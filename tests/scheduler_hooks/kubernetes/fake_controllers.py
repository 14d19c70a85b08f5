"""Stand-ins, over ``FakeKube``, for the controllers of workloads and for our controller process. The webhook is ours.

Each turn of ``advance`` is one look of all of them. They do what the real ones do to the fields that the adapter reads.
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Mapping
from typing import Any

from fakes.kube import FakeKube
from scheduler_hooks.kubernetes.workload_samples import admitted, owned_by, template, templates_of
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector
from tidegauge_scheduler_hooks.kubernetes.owners import (
    JOBSETS,
    KINDS,
    RAYCLUSTERS,
    OwnerKind,
    State,
    at,
    state,
    watched_kinds,
)
from tidegauge_scheduler_hooks.kubernetes.patches import resume_patch
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, Object, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload

FIRST_S = 1_700_000_000


class FakeControllers:
    """``injects``: whether pods are injected."""

    def __init__(self, kube: FakeKube) -> None:
        self.kube = kube
        self.injects = True
        kinds = watched_kinds(KINDS)
        owners = OwnerReader(kube, kinds, {kind.resource: kube.store(kind.resource) for kind in kinds.values()})
        self._webhook = Injector(InjectionOptions("probe"), lambda _: None, settings_of=owners.settings_of)
        self.started: dict[str, list[str]] = {}
        """Names of the pods that ran, by the uid of the workload: one for each start."""
        self._now_s = FIRST_S

    def advance(self) -> None:
        """One look of every controller at every workload."""
        for kind in KINDS.values():
            for obj in self.kube.list(kind.resource):
                if not obj["metadata"].get("ownerReferences"):
                    self._control(kind, obj)
                    self._finish_requeue(kind, self._now(kind, obj))

    def pods(self, obj: Object) -> list[Any]:
        """The pods of a workload, of which each has one a start."""
        return [pod for pod in self.kube.list(PODS) if pod["metadata"]["annotations"].get("test/top") == uid_of(obj)]

    def end(self, kind: OwnerKind, obj: Object) -> None:
        """Its program ends with exit code 0."""
        for pod in self.pods(obj):
            self.kube.put(PODS, {**pod, "status": {**pod["status"], "phase": "Succeeded"}})
        name = "Succeeded" if kind.name == "PyTorchJob" else "Completed" if kind.name == "JobSet" else "Complete"
        if kind.name == "RayJob":
            self._status(kind, obj, jobDeploymentStatus="Complete")
        else:
            self._status(kind, obj, conditions=[{"type": name, "status": "True"}])

    def tick(self) -> str:
        """The time of the API, a second later each time."""
        self._now_s += 1
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now_s))

    def _now(self, kind: OwnerKind, obj: Object) -> Any:
        return self.kube.peek(kind.resource, obj["metadata"]["namespace"], obj["metadata"]["name"])

    def _control(self, kind: OwnerKind, obj: Object) -> None:
        stands = state(kind, obj)
        if stands is State.STOPPING:
            for pod in self.pods(obj):
                self.kube.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
            self._suspended(kind, obj)
        elif stands is State.STARTING or (stands is State.RUNNING and "status" not in obj):
            self._start(kind, obj)

    def _suspended(self, kind: OwnerKind, obj: Object) -> None:
        if kind.name == "RayJob":
            self._status(kind, obj, jobDeploymentStatus="Suspended", rayClusterName="")
        else:
            self._status(kind, obj, conditions=[self._condition("True")], active=0)

    def _start(self, kind: OwnerKind, obj: Object) -> None:
        number = len(self.started.setdefault(uid_of(obj), []))
        above = self._links(kind, obj, number)
        name = f"{obj['metadata']['name']}-{number}"
        made = _template_of(kind, obj)
        metadata = made.setdefault("metadata", {})
        metadata["annotations"] = {**metadata.get("annotations", {}), "test/top": uid_of(obj)}
        metadata.update(
            name=name,
            namespace=obj["metadata"]["namespace"],
            ownerReferences=owned_by(above),
            creationTimestamp=self.tick(),
        )
        if self.injects:
            made = admitted(self._webhook.answer, made, obj["metadata"]["namespace"])
        digits = hashlib.sha256(name.encode()).hexdigest()
        statuses = [{"name": "node", "containerID": f"containerd://{digits}"}]
        self.kube.put(PODS, {**made, "status": {"phase": "Running", "containerStatuses": statuses}})
        self.started[uid_of(obj)].append(name)
        if kind.name == "RayJob":
            self._status(
                kind,
                obj,
                jobDeploymentStatus="Running",
                startTime=self.tick(),
                rayClusterName=above["metadata"]["name"],
            )
            return
        conditions = [] if number == 0 else [self._condition("False")]
        started = {"startTime": self.tick(), "active": 1} if kind.runs else {}
        jobs = {"jobsStatus": [{"name": "node"}]} if kind.name == "TrainJob" else {}
        self._status(kind, obj, conditions=conditions, **started, **jobs)

    def _links(self, kind: OwnerKind, obj: Object, number: int) -> Object:
        """What is between the workload and its pods."""
        links: dict[str, list[Resource]] = {
            "JobSet": [JOBS],
            "TrainJob": [JOBSETS, JOBS],
            "RayJob": [RAYCLUSTERS],
        }
        above = obj
        for resource in links.get(kind.name, []):
            metadata = {
                "name": f"{obj['metadata']['name']}-{resource.plural}-{number}",
                "namespace": obj["metadata"]["namespace"],
                "ownerReferences": owned_by(above),
            }
            above = self.kube.put(resource, {"metadata": metadata, "spec": {}})
        return above

    def _finish_requeue(self, kind: OwnerKind, obj: Any) -> None:
        """Our controller process."""
        order = Workload(kind, obj).order
        if order is None or state(kind, obj) is not State.SUSPENDED or self.pods(obj):
            return
        namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
        self.kube.patch(kind.resource, namespace, name, resume_patch(kind, obj, order))

    def _status(self, kind: OwnerKind, obj: Object, **changed: Any) -> None:
        now = self._now(kind, obj)
        self.kube.put(kind.resource, {**now, "status": {**now.get("status", {}), **changed}})

    def _condition(self, status: str) -> Mapping[str, str]:
        return {"type": "Suspended", "status": status, "lastTransitionTime": self.tick()}


def uid_of(obj: Object) -> str:
    return str(obj["metadata"]["uid"])


def _template_of(kind: OwnerKind, obj: Object) -> Any:
    """The first template; a TrainJob's is its runtime's."""
    paths = templates_of(kind, obj)
    return copy.deepcopy(at(obj, paths[0])) if paths else template()
