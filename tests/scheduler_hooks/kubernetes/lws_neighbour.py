"""LeaderWorkerSet's controllers, the StatefulSets that they make pods by, and Kueue beside them: transcribed from
kubernetes-sigs/lws v0.9.0, kubernetes 1.36 (pkg/controller/statefulset) and kubernetes-sigs/kueue ff69552e79, each step
with its file, and held against what lws v0.9.0, kubernetes 1.36.2 and Kueue efa3c9d749 themselves wrote
(docs/testing.md).

What counts here: who owns whom, what is written on pods, and when a group is made again. Left out: rolling updates,
subgroups, exclusive topologies, ``LeaderReady``, Services, and TPUs. Pods run as soon as they are made and nothing
gates them; one that is being deleted has gone after the next look, with what it owns.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

from scheduler_hooks.kubernetes.neighbours import ENDED, Controllers, Objects
from scheduler_hooks.kubernetes.workload_samples import NAMESPACE, owned_by, template
from tidegauge_scheduler_hooks.kubernetes.kueue import JOB_UID_LABEL, QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import at, is_true
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, Object, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, labels_of

LEADER_WORKER_SETS = Resource("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "LeaderWorkerSet")
STATEFUL_SETS = Resource("apps", "v1", "statefulsets", "StatefulSet")
PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME, GROUP, WORKER = PREFIX + "name", PREFIX + "group-index", PREFIX + "worker-index"
GATE = "kueue.x-k8s.io/admission"
REVISION = "6d5f"


def leader_worker_set(name: str, *, namespace: str = NAMESPACE, replicas: int = 2, size: int = 2) -> dict[str, Any]:
    """As submitted, with the defaults that count here: groups of which every pod has one rank."""
    made = template()
    made["spec"]["restartPolicy"] = "Always"  # a StatefulSet takes no other
    return {
        "apiVersion": LEADER_WORKER_SETS.api_version,
        "kind": LEADER_WORKER_SETS.kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {
                "size": size,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "workerTemplate": made,
            },
        },
    }


def lws_pod_webhook(pod: Any) -> Any:
    """pkg/webhooks/pod_webhook.go, ``Default``; ``AddLWSVariables`` in pkg/utils/pod/pod_utils.go puts its variables
    first, and those of the same names away."""
    metadata, labels = pod["metadata"], pod["metadata"]["labels"]
    if NAME not in labels:
        return pod
    ordinal = metadata["name"].rpartition("-")[2]
    if labels.get(WORKER) == "0":
        labels[GROUP] = ordinal
        labels[PREFIX + "group-key"] = hashlib.sha1(f"{metadata['namespace']}/{metadata['name']}".encode()).hexdigest()
    else:
        labels[WORKER] = ordinal
    values = {
        "LWS_LEADER_ADDRESS": f"{labels[NAME]}-{labels[GROUP]}.{labels[NAME]}.{metadata['namespace']}",
        "LWS_GROUP_SIZE": metadata["annotations"][PREFIX + "size"],
        "LWS_WORKER_INDEX": labels[WORKER],
    }
    for container in (*pod["spec"]["containers"], *pod["spec"].get("initContainers", ())):
        others = [one for one in container.get("env", ()) if one["name"] not in values]
        container["env"] = [*({"name": name, "value": value} for name, value in values.items()), *others]
    return pod


class LeaderWorkerSets(Controllers):
    """Each ``look`` is one reconcile of every object, and then the kubelet's and the garbage collector's turn."""

    def look(self) -> None:
        for found in self._kube.list(LEADER_WORKER_SETS):
            self._control_set(found)
        for found in self._kube.list(STATEFUL_SETS):
            self._control_stateful_set(found)
        for pod in self._kube.list(PODS):
            if NAME in labels_of(pod):
                self._control_pod(pod)
        self._collect_garbage()

    # lws: pkg/controllers/leaderworkerset_controller.go

    def _control_set(self, found: Object) -> None:
        """``SSAWithStatefulset``, ``constructLeaderStatefulSetApplyConfiguration``."""
        spec = found["spec"]
        made_from = spec["leaderWorkerTemplate"].get("leaderTemplate") or spec["leaderWorkerTemplate"]["workerTemplate"]
        labels = {NAME: found["metadata"]["name"], PREFIX + "template-revision-hash": REVISION}
        if not self._below(STATEFUL_SETS, found):
            made = self._template(found, made_from, {**labels, WORKER: "0"}, {})
            body = {"replicas": spec["replicas"], "template": made}
            metadata = self._metadata(found, found["metadata"]["name"], labels)
            self._kube.put(STATEFUL_SETS, {"metadata": metadata, "spec": body})

    # lws: pkg/controllers/pod_controller.go

    def _control_pod(self, pod: Object) -> None:
        """``Reconcile``."""
        labels = labels_of(pod)
        found = next(one for one in self._kube.list(LEADER_WORKER_SETS) if one["metadata"]["name"] == labels[NAME])
        if self._restarts_group(pod, found) or labels[WORKER] != "0" or pod["metadata"].get("deletionTimestamp"):
            return
        name, size = pod["metadata"]["name"], found["spec"]["leaderWorkerTemplate"]["size"]
        if size > 1 and not any(one["metadata"]["name"] == name for one in self._kube.list(STATEFUL_SETS)):
            # constructWorkerStatefulSetApplyConfiguration, setControllerReferenceWithStatefulSet: the leader's own
            names = (GROUP, NAME, PREFIX + "group-key", PREFIX + "template-revision-hash")
            own = {label: labels[label] for label in names}
            made_from = found["spec"]["leaderWorkerTemplate"]["workerTemplate"]
            made = self._template(found, made_from, own, {PREFIX + "leader-name": name})
            body = {"replicas": size - 1, "ordinals": {"start": 1}, "template": made}
            self._kube.put(STATEFUL_SETS, {"metadata": self._metadata(pod, name, own), "spec": body})

    def _restarts_group(self, pod: Object, found: Object) -> bool:
        """``handleRestartPolicy``: the leader is deleted, and the rest of its group goes with it."""
        statuses = [
            one for name in ("initContainerStatuses", "containerStatuses") for one in at(pod, ("status", name)) or ()
        ]
        restarted = pod["status"]["phase"] not in ENDED and any(one["restartCount"] for one in statuses)
        policy = found["spec"]["leaderWorkerTemplate"]["restartPolicy"]
        if policy != "RecreateGroupOnPodRestart" or not (restarted or pod["metadata"].get("deletionTimestamp")):
            return False
        name = pod["metadata"]["name"]
        if labels_of(pod)[WORKER] != "0":
            name = name.rpartition("-")[0]
        leader = next((one for one in self._kube.list(PODS) if one["metadata"]["name"] == name), None)
        if leader is None or (leader is not pod and not self._is_of(pod, leader)):
            return False
        mark_deleted(self._kube, leader, self.now())
        return True

    def _is_of(self, worker: Object, leader: Object) -> bool:
        """``workerPodBelongsToLeader``."""
        owner = worker["metadata"]["ownerReferences"][0]["uid"]
        mine = [one["metadata"]["uid"] for one in self._below(STATEFUL_SETS, leader)]
        return worker["metadata"]["uid"] == leader["metadata"]["uid"] or owner in mine

    # kubernetes: pkg/controller/statefulset/stateful_set_control.go, stateful_set_utils.go

    def _control_stateful_set(self, found: Object) -> None:
        """``processReplica``: pods are called by their ordinal, and those that ended are made again."""
        pods, spec = {pod["metadata"]["name"]: pod for pod in self._below(PODS, found)}, found["spec"]
        first = at(spec, ("ordinals", "start")) or 0
        for ordinal in range(first, first + spec["replicas"]):
            name = f"{found['metadata']['name']}-{ordinal}"
            if name in pods and pods[name]["status"]["phase"] in ENDED:
                self._delete([pods.pop(name)])
            if name not in pods and not found["metadata"].get("deletionTimestamp"):
                made = copy.deepcopy(spec["template"])
                own = {"apps.kubernetes.io/pod-index": str(ordinal), "statefulset.kubernetes.io/pod-name": name}
                made["metadata"].update(
                    name=name,
                    namespace=found["metadata"]["namespace"],
                    ownerReferences=owned_by(found),
                    labels={**made["metadata"]["labels"], **own},
                )
                self._run_pod(made)

    # kubernetes: pkg/controller/garbagecollector, and the kubelet

    def _collect_garbage(self) -> None:
        going = [pod for pod in self._kube.list(PODS) if pod["metadata"].get("deletionTimestamp")]
        for pod in going:
            for found in self._below(STATEFUL_SETS, pod):
                self._delete(self._below(PODS, found))
                self._kube.remove(STATEFUL_SETS, found["metadata"]["namespace"], found["metadata"]["name"])
        left = {pod["metadata"]["uid"] for pod in self._kube.list(PODS)}
        self._delete([pod for pod in going if pod["metadata"]["uid"] in left])

    def _template(self, found: Object, made_from: Any, labels: Any, annotations: Any) -> Any:
        made = copy.deepcopy(made_from)
        size = str(found["spec"]["leaderWorkerTemplate"]["size"])
        made["metadata"]["labels"] = {**(made["metadata"].get("labels") or {}), **labels}
        made["metadata"]["annotations"] = {
            **(made["metadata"].get("annotations") or {}), PREFIX + "size": size, **annotations,
        }  # fmt: skip
        return made


def mark_deleted(kube: Objects, pod: Object, now: str) -> None:
    """Somebody deletes a pod."""
    kube.put(PODS, {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": now}})


class KueueOfSets:
    """Kueue's integration ``leaderworkerset.x-k8s.io/leaderworkerset``: a Workload for each group, whose pods wait
    behind a gate, and are deleted when it is evicted."""

    def __init__(self, kube: Objects) -> None:
        self._kube = kube
        self.has_room = True

    @staticmethod
    def webhook(pod: Any) -> Any:
        """pkg/controller/jobs/pod/pod_webhook.go, ``Default``, of a pod that its parent suspends."""
        if QUEUE_LABEL in labels_of(pod):
            pod["spec"]["schedulingGates"] = [{"name": GATE}]
        return pod

    def look(self) -> None:
        for found in self._kube.list(LEADER_WORKER_SETS):
            if QUEUE_LABEL not in labels_of(found):
                continue
            for index in range(found["spec"]["replicas"]):
                self._control_group(found, index)

    def preempt(self) -> None:
        """pkg/workload/evict."""
        self.has_room = False
        for workload in self._kube.list(QUEUE_WORKLOADS):
            self._say(workload, Evicted="True")

    def _control_group(self, found: Object, index: int) -> None:
        """pkg/controller/jobs/leaderworkerset/leaderworkerset_reconciler.go, ``reconcileWorkloads``;
        pkg/controller/jobs/pod/pod_controller.go, ``Run`` and ``Stop``."""
        name = f"leaderworkerset-{found['metadata']['name']}-{index}"
        workload: Any = next((one for one in self._kube.list(QUEUE_WORKLOADS) if one["metadata"]["name"] == name), None)
        if workload is None:
            owner = {**owned_by(found)[0], "controller": False}  # SetOwnerReference
            metadata = {"name": name, "namespace": found["metadata"]["namespace"], "ownerReferences": [owner],
                        "labels": {JOB_UID_LABEL: found["metadata"]["uid"]}}  # fmt: skip
            workload = self._kube.put(QUEUE_WORKLOADS, {"metadata": metadata, "spec": {"active": True}, "status": {}})
        if is_true(workload, "Evicted"):
            for pod in self._pods(found, index):
                if not at(pod, ("spec", "schedulingGates")):
                    mark_deleted(self._kube, pod, "2023-11-14T23:00:00Z")
            self._say(workload, Evicted="False", QuotaReserved="False", Admitted="False")
        elif self.has_room:
            self._say(workload, QuotaReserved="True", Admitted="True")
            for pod in self._pods(found, index):
                if at(pod, ("spec", "schedulingGates")):
                    spec = {**pod["spec"], "schedulingGates": []}
                    self._kube.put(PODS, {**pod, "spec": spec, "status": {"phase": "Running"}})

    def _pods(self, found: Object, index: int) -> Sequence[Object]:
        wanted = {NAME: found["metadata"]["name"], GROUP: str(index)}
        return [pod for pod in self._kube.list(PODS) if wanted.items() <= labels_of(pod).items()]

    def _say(self, workload: Object, **conditions: str) -> None:
        there = {one["type"]: one for one in at(workload, ("status", "conditions")) or ()}
        there |= {name: {"type": name, "status": status} for name, status in conditions.items()}
        after = {**workload, "status": {"conditions": list(there.values())}}
        if after != workload:
            self._kube.put(QUEUE_WORKLOADS, after)
