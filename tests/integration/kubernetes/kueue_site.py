"""A workload on an API server where Kueue and the controllers of all kinds are at work as their projects ship them. The
head is played, which here only writes the order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from integration.kubernetes.adopted_namespace import NOBODY, AdoptedNamespace, OurProcesses, adopted_namespace
from integration.kubernetes.target import KubeTarget, eventually
from scheduler_hooks.kubernetes.restart_contract import RestartSite, unlabel_first
from scheduler_hooks.kubernetes.workload_samples import template, templates_of, workload
from tidegauge.core.jobs.kubernetes import REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, State, at
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.stops import Stops
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, Workload
from tidegauge_scheduler_hooks.ports import TemporaryError

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
GPUS = 8
"""All that the queue has."""


class KueueSite(RestartSite):
    """``open_site`` makes one."""

    def __init__(self, kube: KubeTarget, kind: str, adopted: AdoptedNamespace, head: Path) -> None:
        self.kind = kind
        self._kind = KINDS[kind]
        self._admin = kube.admin
        self.adopted = adopted
        self._namespace = adopted.name
        self._api = adopted.api
        self._stops = Stops(open_api(head, qps=500, burst=500, timeout_s=60))
        self._urgent = 0

    # What is there

    @property
    def pods(self) -> list[Any]:
        return self.adopted.pods

    @property
    def obj(self) -> Object:
        return self._api.get(self._kind.resource, self._namespace, "train")

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(event["reason"], event["note"]) for event in self.adopted.events]

    def until(self, true: Callable[[], bool]) -> None:
        self.adopted.until(true)

    # What others do

    def submit(self, *, queued: bool, unwatched: int) -> None:
        body = workload(self.kind, "train", namespace=self._namespace)
        self.unwatched = unwatched
        if unwatched:
            unlabel_first(self._kind, body)
        if queued:
            body["metadata"]["labels"][QUEUE_LABEL] = "gpus"
        if self.kind == "JobSet":
            body["spec"]["replicatedJobs"][1]["replicas"] = 1
        if self.kind == "TrainJob":
            self._make_runtime()
            body["spec"]["runtimeRef"]["kind"] = "TrainingRuntime"
        for path in templates_of(self._kind, body):
            at(body, path)["spec"]["schedulerName"] = NOBODY
        self._api.create(self._kind.resource, self._namespace, body)

    def _make_runtime(self) -> None:
        """As those that Trainer ships, with the sample's template."""
        made = template()
        made["spec"]["schedulerName"] = NOBODY
        job = {"metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
               "spec": {"template": made}}  # fmt: skip
        self._admin.do(
            "POST",
            f"/apis/trainer.kubeflow.org/v1alpha1/namespaces/{self._namespace}/trainingruntimes",
            {
                "apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainingRuntime",
                "metadata": {"name": "torch-distributed", "labels": {"trainer.kubeflow.org/framework": "torch"}},
                "spec": {"mlPolicy": {"numNodes": 1, "torch": {}},
                         "template": {"spec": {"replicatedJobs": [{"name": "node", "template": job}]}}},
            },
        )  # fmt: skip

    def requeue(self, **changes: Any) -> RequeueOrder:
        self.until(lambda: self._workload.state is State.RUNNING)
        said = {"decision": "d-1", "attempt": 1, "reason": "rank 1 leaks", "at": time.time()}
        order = RequeueOrder(**{**said, "mark": self._workload.incarnation, **changes})

        def stopped() -> bool:
            with suppress(TemporaryError):
                self._stops.stop(
                    lambda: self._workload,
                    lambda _: {REQUEUE: encode(order), STOPPED: None},
                    incarnation=order.mark,
                    decision_id=order.decision,
                )
                return True
            return False

        self.until(stopped)
        return order

    def close_queue(self) -> None:
        self._stop_policy("Hold")

    def open_queue(self) -> None:
        self._stop_policy("None")

    def preempt(self) -> None:
        self._urgent += 1
        labels = {QUEUE_LABEL: "gpus", "kueue.x-k8s.io/priority-class": self._namespace}
        container = {"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": str(GPUS)}}}
        pod = {"restartPolicy": "Never", "schedulerName": NOBODY, "containers": [container]}
        metadata = {"name": f"urgent-{self._urgent}", "labels": labels}
        self._admin.do("POST", self._jobs, {"metadata": metadata, "spec": {"template": {"spec": pod}}})
        self.until(lambda: self._admin.do("GET", self._urgent_job)["status"].get("active") == 1)

    def leave_room(self) -> None:
        self._admin.do("DELETE", self._urgent_job, {"propagationPolicy": "Background"})

    def take_webhook_away(self) -> None:
        self.adopted.adopt(None)
        eventually(lambda: not self.adopted.is_adopted())

    @property
    def _workload(self) -> Workload:
        return Workload(self._kind, self.obj)

    @property
    def _jobs(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._namespace}/jobs"

    @property
    def _urgent_job(self) -> str:
        return f"{self._jobs}/urgent-{self._urgent}"

    def _stop_policy(self, policy: str) -> None:
        path, patch = f"{KUEUE}/clusterqueues/{self._namespace}", {"spec": {"stopPolicy": policy}}
        self._admin.do("PATCH", path, patch, content_type="application/merge-patch+json")


@contextmanager
def open_site(kube: KubeTarget, ours: OurProcesses, folder: Path, kind: str, **submitted: Any) -> Iterator[KueueSite]:
    """The workload runs when the block begins."""
    with adopted_namespace(kube, ours) as adopted, ExitStack() as stack:
        open_queue(kube, adopted.name, stack)
        site = KueueSite(kube, kind, adopted, ours.release.kubeconfig("head"))
        site.submit(**submitted)
        try:
            site.until_it_runs()
            yield site
        finally:
            print(adopted.story(KINDS[kind].resource, QUEUE_WORKLOADS), ours.process.log[-5000:])


def open_queue(kube: KubeTarget, namespace: str, stack: ExitStack) -> None:
    """``gpus``, in a namespace, until ``stack`` is closed."""
    for plural, body in _cluster_objects(namespace):
        kube.admin.do("POST", plural, body)
        stack.callback(kube.admin.ask, "DELETE", f"{plural}/{body['metadata']['name']}")
    queue = _kueue("LocalQueue", "gpus", spec={"clusterQueue": namespace})
    kube.admin.do("POST", f"{KUEUE}/namespaces/{namespace}/localqueues", queue)


def _cluster_objects(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A queue with room for one workload at a time that gives way to higher priorities."""
    yield f"{KUEUE}/resourceflavors", _kueue("ResourceFlavor", name, spec={"nodeLabels": {"cloud.example/gpu": "h100"}})
    yield f"{KUEUE}/workloadpriorityclasses", _kueue("WorkloadPriorityClass", name, value=1000)
    quotas = {"cpu": "100", "memory": "1Ti", "nvidia.com/gpu": str(GPUS)}
    flavor = {"name": name, "resources": [{"name": one, "nominalQuota": quota} for one, quota in quotas.items()]}
    spec = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [{"coveredResources": list(quotas), "flavors": [flavor]}],
    }
    yield f"{KUEUE}/clusterqueues", _kueue("ClusterQueue", name, spec=spec)


def _kueue(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}
