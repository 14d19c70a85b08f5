"""A workload on an API server where Kueue and the controllers of all kinds are at work as their projects ship them, and
our controller's own process, which serves the webhook. Played: the kubelet, for pods that name a scheduler that nobody
is, and the head, which here only writes the order."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from integration.kubernetes.chart_accounts import installed
from integration.kubernetes.controller_process import running_controller
from integration.kubernetes.injected_pods import CONFIGURATIONS, PROBE_IMAGE, asking, dry_run, pod_webhook
from integration.kubernetes.played_kubelet import play_kubelet
from integration.kubernetes.target import KubeTarget, eventually
from integration.server_process import free_port
from scheduler_hooks.kubernetes.restart_contract import RestartSite, unlabel_first
from scheduler_hooks.kubernetes.workload_samples import template, templates_of, workload
from tidegauge.core.jobs.kubernetes import INJECTED, PROFILE_LABEL, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.events import CONTROLLER
from tidegauge_scheduler_hooks.kubernetes.injection.certificates import renewed
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, State, at
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, Object, ObjectNotFoundError
from tidegauge_scheduler_hooks.kubernetes.stops import Stops
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, Workload
from tidegauge_scheduler_hooks.ports import TemporaryError

WITHIN_S = 120.0
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
GPUS = 8
"""All that the queue has."""
NOBODY = "tidegauge-test-nobody"
ADOPTED = "tidegauge.dev/test"
"""The label of namespaces about whose pods the webhook is asked."""


class OurProcesses:
    """The controller, with the webhook and with the rights that the chart gives it, for all namespaces that have
    ``labels``."""

    def __init__(self, kube: KubeTarget, folder: Path, system: str, stack: ExitStack) -> None:
        self.labels = {ADOPTED: system}
        made = renewed(None, ["localhost"], now_s=time.time())
        (folder / "tls.crt").write_bytes(made.certificate)
        (folder / "tls.key").write_bytes(made.key)
        self.release = stack.enter_context(installed(kube, system, folder, {"workloads": {"actions": True}}))
        port = free_port()
        arguments = [
            f"--kubeconfig={self.release.kubeconfig('controller')}", f"--namespace={system}",
            "--webhook-host=127.0.0.1", f"--webhook-port={port}",
            f"--probe-image={PROBE_IMAGE}", f"--certificate-dir={folder}",
        ]  # fmt: skip
        self.process = stack.enter_context(running_controller(folder, arguments))
        webhook = pod_webhook(port, self.labels, trusted=made.trusted)
        configuration = f"{CONFIGURATIONS}/{self.release.cluster_name}"
        kube.admin.do("PATCH", configuration, {"webhooks": [webhook]}, content_type="application/merge-patch+json")


class KueueSite(RestartSite):
    """``open_site`` makes one."""

    def __init__(self, kube: KubeTarget, kind: str, namespace: str, head: Path) -> None:
        self.kind = kind
        self._kind = KINDS[kind]
        self._admin = kube.admin
        self._namespace = namespace
        self._api = open_api(kube.kubeconfig, qps=500, burst=500, timeout_s=60)
        self._stops = Stops(open_api(head, qps=500, burst=500, timeout_s=60))
        self._urgent = 0

    # What is there

    @property
    def pods(self) -> list[Any]:
        return [
            pod
            for pod in self._api.list(PODS, self._namespace, label_selector=PROFILE_LABEL)
            if not pod["metadata"].get("deletionTimestamp")
        ]

    @property
    def obj(self) -> Object:
        return self._api.get(self._kind.resource, self._namespace, "train")

    @property
    def events(self) -> list[tuple[str, str]]:
        found = self._api.list(EVENTS, self._namespace)
        return [(event["reason"], event["note"]) for event in found if event.get("reportingController") == CONTROLLER]

    def until(self, true: Callable[[], bool]) -> None:
        def look() -> bool:
            for pod in self._api.list(PODS, self._namespace):
                play_kubelet(self._admin, pod, node=self._namespace)
            return true()

        eventually(look, within_s=WITHIN_S)

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
        self.adopt(None)
        eventually(lambda: not self.is_adopted())

    def adopt(self, labels: Mapping[str, str] | None) -> None:
        """Have the webhook asked about pods of the namespace; ``None``: not any more."""
        patch: Any = {"metadata": {"labels": labels or {ADOPTED: None}}}
        path = f"/api/v1/namespaces/{self._namespace}"
        self._admin.do("PATCH", path, patch, content_type="application/merge-patch+json")

    def is_adopted(self) -> bool:
        """A server takes what a namespace is labelled with within moments."""
        made = dry_run(self._admin, self._namespace, asking("look"))
        return INJECTED in (made["metadata"].get("annotations") or {})

    def story(self) -> str:
        """What there is, for whoever reads a failure."""
        found: list[Any] = [*self._api.list(PODS, self._namespace), *self._api.list(EVENTS, self._namespace)]
        with suppress(ObjectNotFoundError):
            found += [self.obj, *self._api.list(QUEUE_WORKLOADS, self._namespace)]
        for one in found:
            one["metadata"].pop("managedFields", None)
        return "\n".join(json.dumps(one) for one in found)

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
    with kube.temporary_namespace("queued") as namespace, ExitStack() as stack:
        for plural, body in _cluster_objects(namespace):
            kube.admin.do("POST", plural, body)
            stack.callback(kube.admin.ask, "DELETE", f"{plural}/{body['metadata']['name']}")
        queue = _kueue("LocalQueue", "gpus", spec={"clusterQueue": namespace})
        kube.admin.do("POST", f"{KUEUE}/namespaces/{namespace}/localqueues", queue)
        site = KueueSite(kube, kind, namespace, ours.release.kubeconfig("head"))
        site.adopt(ours.labels)
        eventually(site.is_adopted)
        site.submit(**submitted)
        try:
            site.until_it_runs()
            yield site
        finally:
            print(site.story(), ours.process.log[-5000:])  # shown with a failure


def _cluster_objects(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A node, and a queue with room for one workload at a time that gives way to higher priorities."""
    yield "/api/v1/nodes", {"metadata": {"name": name}, "spec": {"unschedulable": True}}
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
