"""Workloads whose owners are only notified, beside the controllers as they were transcribed, our webhook and our
controller; all over ``FakeKube``."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fakes.kube import FakeKube
from scheduler_hooks.kubernetes.lws_neighbour import (
    LEADER_WORKER_SETS,
    STATEFUL_SETS,
    KueueOfSets,
    LeaderWorkerSets,
    leader_worker_set,
    lws_pod_webhook,
)
from scheduler_hooks.kubernetes.notified_contract import QUEUED_SETS, VOLCANO, Head, NotifiedSite
from scheduler_hooks.kubernetes.volcano_neighbour import COMMANDS, POD_GROUPS, VolcanoJobs, volcano_job
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, admitted
from tidegauge_scheduler_hooks.kubernetes.controller.cluster_state import ClusterState
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.injection.owner_settings import OwnerReader
from tidegauge_scheduler_hooks.kubernetes.injection.volumes import InjectionOptions
from tidegauge_scheduler_hooks.kubernetes.injection.webhook import Injector
from tidegauge_scheduler_hooks.kubernetes.kueue import QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import KINDS, VOLCANO_JOBS
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, PODS, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL

LOOKS = 12
"""More than any of the ways to a standstill takes."""


class NotifiedWorld(NotifiedSite):
    """One workload called ``train``. ``above``: who owns it; ``spec``: more of its spec."""

    def __init__(self, kind: str, *, above: Sequence[Mapping[str, Any]] = (), **spec: Any) -> None:
        self.kind = kind
        self.kube = FakeKube()
        self.head = Head(self.kube, self.kube)
        self.keys: list[WorkKey] = []
        """What our controller would take a step on."""
        look = ClusterState(self.kube, self.kube, KINDS, on_key=self.keys.append)
        owners = OwnerReader(self.kube, look.kinds, look.stores)
        self._webhook = Injector(InjectionOptions("probe"), lambda _: None, settings_of=owners.settings_of)
        self.kueue = KueueOfSets(self.kube)
        if kind == VOLCANO:
            self.neighbour: VolcanoJobs | LeaderWorkerSets = VolcanoJobs(self.kube, self._admitted)
            self.resource, body = VOLCANO_JOBS, volcano_job("train", **spec)
        else:
            self.neighbour = LeaderWorkerSets(self.kube, self._admitted)
            self.resource, body = LEADER_WORKER_SETS, leader_worker_set("train", **spec)
        if kind == QUEUED_SETS:  # Kueue's webhook: leaderworkerset_webhook.go, podTemplateSpecDefault
            made = body["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]
            for metadata in (body["metadata"], made):
                metadata["labels"] = {**metadata.get("labels", {}), QUEUE_LABEL: "gpus"}
        body["metadata"]["ownerReferences"] = list(above)
        self.kube.put(self.resource, body)
        self.until_it_runs()

    # NotifiedSite

    @property
    def pods(self) -> Sequence[Any]:
        found = sorted(self.kube.list(PODS), key=lambda pod: str(pod["metadata"]["name"]))
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    @property
    def traces(self) -> Mapping[str, Any]:
        kinds = (VOLCANO_JOBS, POD_GROUPS, LEADER_WORKER_SETS, STATEFUL_SETS, QUEUE_WORKLOADS, PODS)
        found = [(resource, obj["metadata"]) for resource in kinds for obj in self.kube.list(resource)]
        return {f"{resource.plural}/{metadata['name']}": metadata["resourceVersion"] for resource, metadata in found}

    @property
    def events(self) -> Sequence[Object]:
        return self.kube.list(EVENTS)

    def until(self, true: Callable[[], bool]) -> None:
        for _ in range(LOOKS):
            if true():
                return
            self.look()
        assert true()

    def fail_one(self) -> None:
        """A Job's pod fails; a set's is restarted by its kubelet."""
        pod = copy.deepcopy(self.pods[-1])
        ended = {"exitCode": 1, "finishedAt": self.neighbour.now()}
        if self.kind == VOLCANO:
            status = {"phase": "Failed", "containerStatuses": [{"name": "node", "state": {"terminated": ended}}]}
        else:
            status = {"phase": "Running", "containerStatuses": [{"name": "node", "restartCount": 1}]}
        self.kube.put(PODS, {**pod, "status": status})

    # What others do

    def look(self, times: int = 1) -> None:
        """Everybody else has a look."""
        for _ in range(times):
            self.neighbour.look()
            self.kueue.look()

    def command(self, action: str) -> None:
        """``vcctl job suspend|resume`` (volcano: pkg/cli/job): a Command, which its controller takes away."""
        target = {"apiVersion": VOLCANO_JOBS.api_version, "kind": "Job", "name": "train"}
        metadata = {"name": f"train-{action.lower()}", "namespace": NAMESPACE}
        self.kube.put(COMMANDS, {"metadata": metadata, "action": action, "target": target})

    def _admitted(self, pod: Mapping[str, Any], namespace: str) -> Any:
        """The API server asks webhooks by the names of their configurations: ``kueue-…``, ``lws-…``, ours."""
        made = copy.deepcopy(dict(pod))
        if self.kind != VOLCANO:
            made = lws_pod_webhook(self.kueue.webhook(made))
        return admitted(self._webhook.answer, made, namespace)
