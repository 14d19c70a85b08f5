"""The controllers that make pods of workloads, as they behave beside Kueue: transcribed from their sources, each step
with its file. They work on ``list``, ``put`` and ``remove`` of an API server, and each ``look`` is one reconcile of
every object.

Versions: kubernetes 1.36 (pkg/controller/job), kubernetes-sigs/jobset 08dfbdfd, kubeflow/trainer 8c0f5059b,
kubeflow/training-operator v1.9.0, ray-project/kuberay feeaf72fa; held against what kubernetes 1.36.2, jobset v0.12.0,
trainer v2.3.0, training-operator v1.9.4 and kuberay v1.7.0 themselves wrote (docs/testing.md). Left out: failures,
success policies, deadlines, and whatever does not touch templates, suspension or pods. Pods run as soon as they are
made, and end as soon as they are deleted.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scheduler_hooks.kubernetes.workload_samples import owned_by, template
from tidegauge_scheduler_hooks.kubernetes.owners import JOBSETS, PYTORCHJOBS, RAYCLUSTERS, RAYJOBS, TRAINJOBS, at
from tidegauge_scheduler_hooks.kubernetes.ports import JOBS, PODS, Object, Resource

ENDED = ("Succeeded", "Failed")
Admission = Callable[[Mapping[str, Any], str], Any]
"""A pod that is about to be made, and its namespace; returns it as the mutating webhooks leave it."""


class Objects(Protocol):
    """What the controllers need of an API server."""

    def list(self, resource: Resource) -> Sequence[Object]: ...
    def put(self, resource: Resource, body: Object) -> Object: ...
    def remove(self, resource: Resource, namespace: str | None, name: str) -> None: ...


class Controllers:
    """What they share. ``admitted`` is asked about every new pod."""

    def __init__(self, kube: Objects, admitted: Admission) -> None:
        self._kube = kube
        self._admitted = admitted
        self._made = 0
        self._now_s = 1_700_000_000

    def now(self) -> str:
        """A second later each time."""
        self._now_s += 1
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now_s))

    def _below(self, resource: Resource, owner: Object) -> list[Object]:
        """``metav1.IsControlledBy``."""
        uid = owner["metadata"]["uid"]
        return [
            obj
            for obj in self._kube.list(resource)
            if any(one["uid"] == uid and one.get("controller") for one in obj["metadata"].get("ownerReferences") or ())
        ]

    def _metadata(self, owner: Object, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
        namespace = owner["metadata"]["namespace"]
        return {"name": name, "namespace": namespace, "labels": dict(labels), "ownerReferences": owned_by(owner)}

    def _run_pod(self, pod: Any) -> Object:
        """Made as the webhooks leave it; it runs unless something gates it."""
        namespace = pod["metadata"]["namespace"]
        pod["metadata"].setdefault("annotations", {})
        pod["metadata"]["creationTimestamp"] = self.now()
        made = self._admitted(pod, namespace)
        phase = "Pending" if made["spec"].get("schedulingGates") else "Running"
        return self._kube.put(PODS, {**made, "status": {"phase": phase}})

    def _delete(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            self._kube.remove(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _write(self, resource: Resource, obj: Any) -> None:
        """Only the status, on the object as it is now."""
        uid = obj["metadata"]["uid"]
        now = next((one for one in self._kube.list(resource) if one["metadata"]["uid"] == uid), None)
        if now is not None and now.get("status") != obj["status"]:
            self._kube.put(resource, {**now, "status": obj["status"]})


class Neighbours(Controllers):
    """Those of all kinds that are acted on."""

    def look(self) -> None:
        for resource, control in (
            (TRAINJOBS, self._control_trainjob),
            (JOBSETS, self._control_jobset),
            (JOBS, self._control_job),
            (PYTORCHJOBS, self._control_pytorchjob),
            (RAYJOBS, self._control_rayjob),
            (RAYCLUSTERS, self._control_raycluster),
        ):
            for obj in self._kube.list(resource):
                control(copy.deepcopy(dict(obj)))

    # kubernetes: pkg/controller/job/job_controller.go

    def _control_job(self, job: Any) -> None:
        """``syncJob``."""
        spec, status = job["spec"], job.setdefault("status", {})
        pods = [pod for pod in self._below(PODS, job) if pod["status"]["phase"] not in ENDED]
        if spec.get("suspend"):
            # manageJob: active pods are deleted; syncJob: the condition, and no start time
            self._delete(pods)
            status.update(active=0, startTime=None)
            self._say_suspended(status, "True")
        else:
            status["startTime"] = status.get("startTime") or self.now()
            self._say_suspended(status, "False")
            missing = spec.get("parallelism", 1) - len(pods)
            labels = {"batch.kubernetes.io/job-name": job["metadata"]["name"]}
            for _ in range(missing):
                self._make_pod(job, spec["template"], labels)
            status["active"] = spec.get("parallelism", 1)
        self._write(JOBS, job)

    # jobset: pkg/controllers/jobset_controller.go

    def _control_jobset(self, jobset: Any) -> None:
        """``reconcile``."""
        status = jobset.setdefault("status", {})
        suspended = bool(jobset["spec"].get("suspend"))
        there = {job["metadata"]["name"]: copy.deepcopy(dict(job)) for job in self._below(JOBS, jobset)}
        if suspended:  # suspendJobs
            for job in there.values():
                self._set_suspended(job, True)
            self._say_suspended(status, "True")
        else:  # resumeJobsIfNecessary
            for job in there.values():
                if job["spec"].get("suspend"):
                    self._resume_job(jobset, job)
            self._say_suspended(status, "False")
        for replicated in jobset["spec"]["replicatedJobs"]:
            for index in range(replicated.get("replicas", 1)):
                name = f"{jobset['metadata']['name']}-{replicated['name']}-{index}"
                if name not in there:
                    self._construct_job(jobset, replicated, name, suspended)
        jobs = self._below(JOBS, jobset)
        status["replicatedJobsStatus"] = [
            {
                "name": replicated["name"],
                "active": sum((at(job, ("status", "active")) or 0) > 0 for job in jobs if _is_of(job, replicated)),
            }
            for replicated in jobset["spec"]["replicatedJobs"]
        ]
        self._write(JOBSETS, jobset)

    def _construct_job(self, jobset: Object, replicated: Any, name: str, suspended: bool) -> None:
        """``constructJob``, ``labelAndAnnotateObject``."""
        spec = copy.deepcopy(replicated["template"]["spec"])
        spec["suspend"] = suspended
        labels = {
            "jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"],
            "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
            "jobset.sigs.k8s.io/restart-attempt": str(at(jobset, ("status", "restarts")) or 0),
        }
        metadata = spec["template"].setdefault("metadata", {})
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        self._kube.put(JOBS, {"metadata": self._metadata(jobset, name, labels), "spec": spec})

    def _resume_job(self, jobset: Object, job: Any) -> None:
        """``resumeJob``: labels, annotations and node selector are merged into the Job's template, never removed."""
        replicated = next(one for one in jobset["spec"]["replicatedJobs"] if _is_of(job, one))
        theirs = replicated["template"]["spec"]["template"]
        job["status"]["startTime"] = None
        metadata, spec = job["spec"]["template"].setdefault("metadata", {}), job["spec"]["template"]["spec"]
        for name in ("labels", "annotations"):
            metadata[name] = {**(metadata.get(name) or {}), **(at(theirs, ("metadata", name)) or {})}
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **(theirs["spec"].get("nodeSelector") or {})}
        self._set_suspended(job, False)

    def _set_suspended(self, job: Any, suspended: bool) -> None:
        job["spec"]["suspend"] = suspended
        self._kube.put(JOBS, job)

    # trainer: pkg/controller/trainjob_controller.go, pkg/runtime/framework/plugins/jobset/jobset.go

    def _control_trainjob(self, trainjob: Any) -> None:
        """``reconcileObjects``, and ``Build`` of the plugin."""
        status, metadata = trainjob.setdefault("status", {}), trainjob["metadata"]
        jobset: Any = next(iter(self._below(JOBSETS, trainjob)), None)
        suspended = bool(trainjob["spec"].get("suspend"))
        if jobset is None or suspended or jobset["spec"].get("suspend"):  # "Do not update the JobSet if …"
            before = jobset or {"metadata": self._metadata(trainjob, metadata["name"], {})}
            made = runtime_templates(trainjob)
            jobs = [{"name": name, "replicas": 1, "template": {"spec": {"template": one}}} for name, one in made]
            jobset = self._kube.put(JOBSETS, {**before, "spec": {"suspend": suspended, "replicatedJobs": jobs}})
        if suspended:  # setSuspendedCondition
            self._say_suspended(status, "True")
        else:
            self._say_suspended(status, "False")
        status["jobsStatus"] = at(jobset, ("status", "replicatedJobsStatus")) or []
        self._write(TRAINJOBS, trainjob)

    # training-operator: pkg/controller.v1/common/job.go, pod.go

    def _control_pytorchjob(self, job: Any) -> None:
        """``ReconcileJobs``."""
        status = job.setdefault("status", {})
        pods = self._below(PODS, job)
        replicas = job["spec"]["pytorchReplicaSpecs"]
        if at(job, ("spec", "runPolicy", "suspend")):
            self._delete(pods)  # CleanUpResources
            status["replicaStatuses"] = {name: {"active": 0} for name in replicas}
            self._say_suspended(status, "True")
        else:
            if _is_suspended(status):
                self._say_suspended(status, "False")
                status["startTime"] = self.now()
            status["startTime"] = status.get("startTime") or self.now()
            there = {pod["metadata"]["labels"]["training.kubeflow.org/replica-type"] for pod in pods}
            for name, replica in replicas.items():
                if name.lower() not in there:
                    labels = {
                        "training.kubeflow.org/job-name": job["metadata"]["name"],
                        "training.kubeflow.org/replica-type": name.lower(),
                    }
                    self._make_pod(job, replica["template"], labels)
            status["replicaStatuses"] = {name: {"active": 1} for name in replicas}
        self._write(PYTORCHJOBS, job)

    # kuberay: ray-operator/controllers/ray/rayjob_controller.go, raycluster_controller.go

    def _control_rayjob(self, job: Any) -> None:
        """``Reconcile``: one state a look."""
        status, suspend = job.setdefault("status", {}), job["spec"].get("suspend")
        stage = status.get("jobDeploymentStatus") or ""
        if stage == "":  # initRayJobStatusIfNeed
            self._made += 1
            status.update(
                jobDeploymentStatus="Initializing", rayClusterName=f"{job['metadata']['name']}-{self._made:05}"
            )
        elif stage in ("Initializing", "Running") and suspend:  # updateStatusToSuspendingIfNeeded
            status["jobDeploymentStatus"] = "Suspending"
        elif stage == "Initializing":  # getOrCreateRayClusterInstance, constructRayClusterForRayJob
            metadata = self._metadata(job, status["rayClusterName"], job["metadata"].get("labels") or {})
            metadata["labels"]["ray.io/originated-from-cr-name"] = job["metadata"]["name"]
            metadata["annotations"] = dict(job["metadata"].get("annotations") or {})  # ours, too
            self._kube.put(RAYCLUSTERS, {"metadata": metadata, "spec": copy.deepcopy(job["spec"]["rayClusterSpec"])})
            # createK8sJobIfNeed: the submitter, by the name of the RayJob
            container = {"name": "ray-job-submitter", "image": "ray"}
            submitter = {"spec": {"restartPolicy": "Never", "containers": [container]}}
            metadata = self._metadata(job, job["metadata"]["name"], {})
            self._kube.put(JOBS, {"metadata": metadata, "spec": {"template": submitter}})
            status.update(jobDeploymentStatus="Running", startTime=self.now())
        elif stage == "Suspending":  # deleteClusterResources, deleteSubmitterJob; startTime stays
            for resource in (RAYCLUSTERS, JOBS):
                for made in self._below(resource, job):
                    self._delete(self._below(PODS, made))
                    self._kube.remove(resource, made["metadata"]["namespace"], made["metadata"]["name"])
            status.update(jobDeploymentStatus="Suspended", rayClusterName="")
        elif stage == "Suspended" and not suspend:
            status["jobDeploymentStatus"] = ""
        self._write(RAYJOBS, job)

    def _control_raycluster(self, cluster: Any) -> None:
        """``reconcilePods``."""
        there = {pod["metadata"]["labels"]["ray.io/group"] for pod in self._below(PODS, cluster)}
        groups = [("headgroup", cluster["spec"]["headGroupSpec"])]
        groups += [(one["groupName"], one) for one in cluster["spec"]["workerGroupSpecs"]]
        for name, group in groups:
            if name not in there:
                labels = {"ray.io/cluster": cluster["metadata"]["name"], "ray.io/group": name}
                self._make_pod(cluster, group["template"], labels)

    def _make_pod(self, owner: Object, made_from: Mapping[str, Any], labels: Mapping[str, str]) -> None:
        self._made += 1
        metadata = copy.deepcopy(made_from.get("metadata") or {})
        own = self._metadata(owner, f"{owner['metadata']['name']}-{self._made}", {})
        own["labels"] = {**(metadata.get("labels") or {}), **labels}
        self._run_pod({"metadata": {**metadata, **own}, "spec": copy.deepcopy(made_from["spec"])})

    def _say_suspended(self, status: Any, word: str) -> None:
        """No condition says that what was never suspended is not."""
        found = next((one for one in status.setdefault("conditions", []) if one["type"] == "Suspended"), None)
        if found is None and word == "True":
            status["conditions"].append({"type": "Suspended", "status": word, "lastTransitionTime": self.now()})
        elif found is not None and found["status"] != word:
            found.update(status=word, lastTransitionTime=self.now())


def runtime_templates(trainjob: Object) -> list[tuple[str, Any]]:
    """Names and pod templates of the runtime's jobs, with the labels, annotations and node selectors of all
    ``runtimePatches`` (trainer: pkg/runtime/core/trainingruntime.go, ``RuntimeInfo``)."""
    made = template()
    for entry in trainjob["spec"].get("runtimePatches") or ():
        for job in at(entry, ("trainingRuntimeSpec", "template", "spec", "replicatedJobs")) or ():
            assert job["name"] == "node", "its webhook refuses jobs that its runtime does not have"
            patch = at(job, ("template", "spec", "template")) or {}
            for name in ("labels", "annotations"):
                made["metadata"][name] = {
                    **(made["metadata"].get(name) or {}),
                    **(at(patch, ("metadata", name)) or {}),
                }
            selector = at(patch, ("spec", "nodeSelector")) or {}
            made["spec"]["nodeSelector"] = {**(made["spec"].get("nodeSelector") or {}), **selector}
    return [("node", made)]


def _is_of(job: Object, replicated: Mapping[str, Any]) -> bool:
    return bool(job["metadata"]["labels"].get("jobset.sigs.k8s.io/replicatedjob-name") == replicated["name"])


def _is_suspended(status: Mapping[str, Any]) -> bool:
    return any(one["type"] == "Suspended" and one["status"] == "True" for one in status.get("conditions") or ())
