"""Workloads on an API server for the contract of schedulers. The adapter has the rights of the head and no more.

The Job controller is the server's, JobSet's is the server's or the stand-in. The test plays the kubelet (a pod's
status), the ranks, and our controller process where there is none; pods name a scheduler that nobody is, so no real
node takes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fake_ranks import FakeRanks
from integration.kubernetes.chart_accounts import SYSTEM, installed
from integration.kubernetes.played_kubelet import play_kubelet
from integration.kubernetes.target import WITHIN_S, KubeTarget
from sample_views import identity, job_view, rank_summary
from scheduler_hooks.kubernetes.workload_samples import SUBMITTED_WITH, templates_of, workload
from scheduler_hooks.port_contract import ContractWorld
from tidegauge.core.ids import JobId, ProcessId
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, INJECTED, SCHEDULER, PodPlace
from tidegauge.core.jobs.settings import JobSettings, changes
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.checkpoint import RankCheckpoint
from tidegauge_scheduler_hooks.kubernetes.adapter import KubernetesScheduler
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.client.watches import ClientWatches
from tidegauge_scheduler_hooks.kubernetes.intents import decode_changes
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, State, at, state
from tidegauge_scheduler_hooks.kubernetes.patches import resume_patch
from tidegauge_scheduler_hooks.kubernetes.pod_directory import PodDirectory
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, ConflictError, ObjectNotFoundError
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, attempt_of


class ApiWorld(ContractWorld):
    """Workloads of one kind in one namespace, each of one pod."""

    def __init__(
        self, kube: KubeTarget, namespace: str, kind: str, folder: Path, *, has_controller: bool = False
    ) -> None:
        """``has_controller``: there is one with the account of ``release``, and pods are marked."""
        self._has_controller = has_controller
        self.kind = KINDS[kind]
        self.namespace = namespace
        self.admin = kube.admin
        self.api = open_api(kube.kubeconfig, qps=500, burst=500, timeout_s=60)
        self.ranks = FakeRanks()
        workloads = {"kinds": ["Job", "JobSet"], "actions": True, "podConditions": has_controller}
        values = {"workloads": workloads, "rbac": {"namespaces": [SYSTEM]}, "injection": {"mode": "none"}}
        self._stack = ExitStack()
        self.release = self._stack.enter_context(installed(kube, namespace, folder, values))
        head = open_api(self.release.kubeconfig("head"), qps=500, burst=500, timeout_s=60)
        self._watches = ClientWatches(head, namespaces=[namespace])
        self.directory = PodDirectory(self._watches, ["Job", "JobSet"])
        self.port: KubernetesScheduler = KubernetesScheduler(
            head,
            self.directory,
            self.ranks,
            controller_age_s=lambda: 0.0,
            kinds=["Job", "JobSet"],
            checkpoints=RankCheckpoint(self.ranks, sleep=lambda _: None),
        )
        self._started: dict[str, list[Any]] = {}
        """The pods that ran, by the name of their workload."""

    def close(self) -> None:
        self._watches.close()
        self._stack.close()

    # ContractWorld

    def start_job(self, *, saves: bool = False, **spec: Any) -> JobView:
        name = f"train-{len(self._started)}"
        self._started[name] = []
        body = submitted(self.kind.name, name)
        self.api.create(self.kind.resource, self.namespace, {**body, "spec": {**body["spec"], **spec}})
        self.until(lambda: bool(self._started[name]))
        view = self.view_of(name)
        if saves:
            self.ranks.savers.add(view.ranks[0].process)
        return view

    def view_now(self, job: JobView) -> JobView:
        return self.view_of(name_of(job))

    def end_by_itself(self, job: JobView) -> None:
        for pod in self.pods(name_of(job)):
            self._status(pod, {"phase": "Succeeded"})
        self.until(lambda: state(self.kind, self.object(job)) is State.FINISHED)

    def fail(self, job: JobView) -> None:
        """Have its program end with exit code 1."""
        for pod in self.pods(name_of(job)):
            self._status(pod, {"phase": "Failed"})

    def delete(self, job: JobView) -> None:
        """As ``kubectl delete`` does."""
        resource = self.kind.resource
        path = f"/apis/{resource.api_version}/namespaces/{self.namespace}/{resource.plural}/{name_of(job)}"
        self.admin.do("DELETE", path, {"propagationPolicy": "Background"})

    def delete_pods(self, job: JobView) -> None:
        for pod in self.pods(name_of(job)):
            self.admin.do("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}", {})

    def starts(self, job: JobView) -> int:
        return len(self._started[name_of(job)])

    def alive(self, job: JobView) -> bool:
        return any(pod["status"].get("phase") == "Running" for pod in self.pods(name_of(job)))

    def saves(self, job: JobView) -> int:
        return len(self.ranks.saved.get(job.ranks[0].process, ()))

    def environ(self, job: JobView) -> dict[str, str]:
        """As the webhook would set it."""
        wanted = decode_changes(self.object(job)["metadata"]["annotations"].get(CHANGES, "{}"))
        settings = JobSettings("", 0, 0, wanted.environ, wanted.alloc_conf, wanted.torch_version)
        return {**SUBMITTED_WITH, **changes(settings, SUBMITTED_WITH)}

    def owner_sees(self, job: JobView) -> str:
        uid = self.object(job)["metadata"]["uid"]
        events = self.api.list(EVENTS, self.namespace)
        return "\n".join(event["note"] for event in events if event["regarding"].get("uid") == uid)

    def until(self, true: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WITHIN_S
        while True:
            self._play()
            if true():
                return
            assert time.monotonic() < deadline_s, f"it did not happen within {WITHIN_S:g} s"
            time.sleep(0.05)  # between two looks; nothing is decided by it

    # What is there

    def object(self, job: JobView) -> Any:
        return self.api.get(self.kind.resource, self.namespace, name_of(job))

    def pods(self, name: str) -> list[Any]:
        return [pod for pod in self.api.list(PODS, self.namespace) if pod["metadata"]["labels"].get("test") == name]

    def view_of(self, name: str) -> JobView:
        """As the coordinator would see it once the watches have told all of its latest pod."""
        uid = self._started[name][-1]["metadata"]["uid"]
        self.until(lambda: self.directory.pod_of(uid) is not None)
        process = ProcessId(1000 + len(self._started[name]), 1 + list(self._started).index(name))
        view = view_in_pod(self.directory, uid, process)
        self.until(lambda: (found := self.port.describe([view]).get(view.key)) is not None and found.running)
        return view

    # What others do

    def _play(self) -> None:
        for name in self._started:
            for pod in self.pods(name):
                self._play_kubelet(name, pod)
            if not self._has_controller:
                self._play_controller(name)

    def _play_kubelet(self, name: str, pod: Any) -> None:
        if pod["status"].get("phase") == "Pending" and not pod["metadata"].get("deletionTimestamp"):
            owner = self.api.get(self.kind.resource, self.namespace, name)
            told = {ATTEMPT: str(attempt_of(owner))}  # by the webhook, which is asked before the pod is there
            self.api.patch(PODS, self.namespace, pod["metadata"]["name"], {"metadata": {"annotations": told}})
        if play_kubelet(self.admin, pod):
            self._started[name].append(pod)

    def _play_controller(self, name: str) -> None:
        try:
            obj = self.api.get(self.kind.resource, self.namespace, name)
        except ObjectNotFoundError:
            return
        order = Workload(self.kind, obj).order
        if order is None or state(self.kind, obj) is not State.SUSPENDED or self.pods(name):
            return
        try:
            patch = resume_patch(self.kind, obj, order)
            self.api.patch(self.kind.resource, self.namespace, name, patch)
        except ConflictError:
            return  # at the next look

    def _status(self, pod: Any, status: Mapping[str, Any]) -> None:
        self.api.patch(PODS, self.namespace, pod["metadata"]["name"], {"status": dict(status)}, subresource="status")


def view_in_pod(directory: PodDirectory, uid: str, process: ProcessId) -> JobView:
    """As the coordinator would see a job with one rank in a pod that the directory knows."""
    facts = directory.pod_of(uid)
    assert facts is not None
    who = identity(
        job_id=JobId(facts.job_id), attempt=facts.attempt, world_size=1, torch_version="2.11.0", alloc_conf=None
    )
    place = PodPlace(uid, facts.namespace, facts.pod, "node", job_known=True)
    rank = rank_summary(0, identity=who, process=process, uid=0, verdict=OK, pod=place)
    return job_view(
        job_id=facts.job_id, attempt=facts.attempt, world_size=1, ranks=(rank,), rank_nodes=("n",),
        rank_hostnames=("n1",), scheduler=SCHEDULER,
    )  # fmt: skip


def running_status(pod: Any) -> dict[str, Any]:
    """What the kubelet says of a pod whose container ``node`` runs."""
    digits = pod["metadata"]["uid"].replace("-", "") * 2
    container = {"name": "node", "image": "i", "imageID": "i", "containerID": f"containerd://{digits}",
                 "ready": True, "restartCount": 0, "state": {"running": {}}}  # fmt: skip
    return {"phase": "Running", "containerStatuses": [container]}


def submitted(kind: str, name: str) -> dict[str, Any]:
    """A workload of one pod, which says that it was injected, and waits for a scheduler that is nobody."""
    obj = workload(kind, name, namespace="")
    del obj["metadata"]["namespace"]
    if kind == "JobSet":
        obj["spec"]["replicatedJobs"] = obj["spec"]["replicatedJobs"][:1]
    for path in templates_of(KINDS[kind], obj):
        template: Any = at(obj, path)
        template["metadata"]["labels"]["test"] = name
        template["metadata"]["annotations"] = {INJECTED: "1"}
        template["spec"]["schedulerName"] = "tidegauge-test-nobody"
        template["spec"]["terminationGracePeriodSeconds"] = 1
    return obj


def name_of(job: JobView) -> str:
    return job.job_id.partition("/")[2]
