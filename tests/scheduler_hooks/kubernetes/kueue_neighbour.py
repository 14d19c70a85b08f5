"""Kueue beside workloads: transcribed from kubernetes-sigs/kueue ff69552e79 (2026-08-22), each step with its file, and
held against what efa3c9d749 (2026-08-20) itself wrote (docs/testing.md). One queue with room for everything while
``has_room``; no fair sharing, no slices, no MultiKueue.

What counts here: when it suspends and resumes a workload, and what it then writes into the pod templates.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler_hooks.kubernetes.neighbours import Objects, runtime_templates
from scheduler_hooks.kubernetes.workload_samples import owned_by, templates_of
from tidegauge_scheduler_hooks.kubernetes.kueue import JOB_UID_LABEL, QUEUE_WORKLOADS
from tidegauge_scheduler_hooks.kubernetes.owners import JOB, KINDS, TRAINJOB, OwnerKind, at, is_true
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import QUEUE_LABEL, labels_of

MANAGER = "kueue.x-k8s.io/manager"
"""trainjob_controller.go, ``runtimePatchManagerName``."""
STOPPING = "kueue.x-k8s.io/stopping"
"""job_controller.go, ``StoppingAnnotation``."""
FLAVOR = {"cloud.example/gpu": "h100"}
"""``nodeLabels`` of the only ResourceFlavor."""


EARLIER = "2023-11-14T22:13:20Z"
"""1,700,000,000 s."""


class Kueue:
    """Each ``look`` is one reconcile of every Workload and job."""

    def __init__(self, kube: Objects) -> None:
        self._kube = kube
        self.has_room = True
        self.checks: tuple[str, ...] = ()
        """The admission checks of the queue."""

    def look(self) -> None:
        for workload in self._kube.list(QUEUE_WORKLOADS):
            self._control_workload(copy.deepcopy(dict(workload)))
        for kind in KINDS.values():
            for obj in self._kube.list(kind.resource):
                # Below a job that it manages nothing of this is done (reconciler.go: isTopLevelJob).
                if QUEUE_LABEL in labels_of(obj) and not obj["metadata"].get("ownerReferences"):
                    self._control_job(kind, copy.deepcopy(dict(obj)))

    def preempt(self, name: str) -> None:
        """pkg/scheduler/preemption/preemption.go, ``IssuePreemptions``; pkg/workload/evict."""
        workload = self._workload_of_name(name)
        assert is_true(workload, "QuotaReserved")
        _evict(workload, "Preempted")
        self._kube.put(QUEUE_WORKLOADS, workload)

    # pkg/controller/core/workload_controller.go, pkg/scheduler

    def _control_workload(self, workload: Any) -> None:
        if workload["spec"].get("active") is False:
            if not is_true(workload, "Evicted"):
                _evict(workload, "Deactivated")
        elif _reason(workload, "Requeued", "False") == "Deactivated":
            _say(workload, "Requeued", "True", "Reactivated")
        elif self.has_room and not is_true(workload, "QuotaReserved") and not _reason(workload, "Requeued", "False"):
            # SetQuotaReservation (pkg/workload/workload.go): the only one that ends an eviction
            _say(workload, "QuotaReserved", "True", "QuotaReserved")
            workload["status"]["admission"] = {"podSetAssignments": _assigned(workload)}
            if is_true(workload, "Evicted"):
                _say(workload, "Evicted", "False", "QuotaReserved")
        if is_true(workload, "QuotaReserved") and not is_true(workload, "Evicted"):
            self._control_checks(workload)
        self._kube.put(QUEUE_WORKLOADS, workload)

    def _control_checks(self, workload: Any) -> None:
        """pkg/workload/admissionchecks.go, ``SyncAdmittedCondition``; ``reconcileCheckBasedEviction``."""
        states = workload["status"].setdefault("admissionChecks", [])
        for name in {*self.checks} - {one["name"] for one in states}:
            states.append({"name": name, "state": "Pending", "message": "", "lastTransitionTime": EARLIER})
        if any(one["state"] == "Rejected" for one in states):
            workload["spec"]["active"] = False
        elif all(one["state"] == "Ready" for one in states) and not is_true(workload, "Admitted"):
            _say(workload, "Admitted", "True", "Admitted")

    # pkg/controller/jobframework/reconciler.go, ReconcileGenericJob

    def _control_job(self, kind: OwnerKind, obj: Any) -> None:
        workload = self._workload_of(obj)
        if workload is None:
            if not _is_suspended(kind, obj):
                # ensureOneWorkload: "job with no matching workload, suspending"
                self._stop(kind, obj, None)
                return
            self._construct_workload(kind, obj)
        elif is_true(workload, "Evicted"):  # 6. handle eviction
            if not self._stop(kind, obj, workload):
                return
            if is_true(workload, "QuotaReserved") and not _is_active(kind, self._now(kind, obj)):
                evicted = _reason(workload, "Evicted", "True")
                _say(workload, "Requeued", "True" if evicted == "Preempted" else "False", evicted)
                _say(workload, "QuotaReserved", "False", "Pending")
                _say(workload, "Admitted", "False", "NoReservation")
                workload["status"].pop("admission", None)
                self._kube.put(QUEUE_WORKLOADS, workload)
        elif _is_suspended(kind, obj):  # 7. handle job is suspended
            if is_true(workload, "Admitted"):
                self._run(kind, obj, workload)
        elif not is_true(workload, "Admitted"):  # 8. handle job is unsuspended
            self._stop(kind, obj, workload)

    def _construct_workload(self, kind: OwnerKind, obj: Any) -> None:
        """``ConstructWorkload``: its pod sets are the templates as they are now."""
        sets = [{"name": name, "template": copy.deepcopy(one)} for name, one in _pod_templates(kind, obj)]
        if kind is JOB:  # cleanLabels (job_controller.go)
            at(sets[0], ("template", "metadata", "labels")).pop("controller-uid", None)
        metadata = obj["metadata"]
        self._kube.put(
            QUEUE_WORKLOADS,
            {
                "metadata": {
                    "name": f"{kind.name.lower()}-{metadata['name']}",
                    "namespace": metadata["namespace"],
                    "ownerReferences": owned_by(obj),
                    "labels": {JOB_UID_LABEL: metadata["uid"]},
                },
                "spec": {"active": True, "queueName": labels_of(obj)[QUEUE_LABEL], "podSets": sets},
                "status": {"conditions": []},
            },
        )

    def _stop(self, kind: OwnerKind, obj: Any, workload: Object | None) -> bool:
        """``stopJob``; whether it is stopped."""
        sets = [] if workload is None else workload["spec"]["podSets"]
        if kind is JOB:
            return self._stop_job(obj, sets)
        if kind is TRAINJOB:
            return self._stop_trainjob(obj)
        if _is_suspended(kind, obj):
            return True
        _set_suspended(kind, obj, True)
        for path, one in zip(templates_of(kind, obj), sets, strict=bool(sets)):
            _restore(at(obj, path), one["template"])
        self._kube.put(kind.resource, obj)
        return True

    def _stop_job(self, obj: Any, sets: Sequence[Any]) -> bool:
        """pkg/controller/jobs/job/job_controller.go, ``Stop``: the template is always put back, whether the Job was
        suspended before or not. Three patches, and others see what is between them."""
        if not obj["spec"].get("suspend"):
            obj["spec"]["suspend"] = True
            obj["metadata"].setdefault("annotations", {})[STOPPING] = "true"
            obj = copy.deepcopy(dict(self._kube.put(JOB.resource, obj)))
        if at(obj, ("status", "startTime")):
            obj["status"]["startTime"] = None
            obj = copy.deepcopy(dict(self._kube.put(JOB.resource, obj)))
        if sets:
            _restore(obj["spec"]["template"], sets[0]["template"])
        obj["metadata"].get("annotations", {}).pop(STOPPING, None)
        if obj != self._now(JOB, obj):
            self._kube.put(JOB.resource, obj)
        return True

    def _stop_trainjob(self, obj: Any) -> bool:
        """pkg/controller/jobs/trainjob/trainjob_controller.go, ``Stop``: only its own entry of ``runtimePatches``."""
        if not obj["spec"].get("suspend"):
            obj["spec"]["suspend"] = True
            self._kube.put(TRAINJOB.resource, obj)
        if _is_active(TRAINJOB, obj):
            return False  # "jobs are still active"
        _own_entry(obj)["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] = []
        if obj != self._now(TRAINJOB, obj):
            self._kube.put(TRAINJOB.resource, obj)
        return True

    def _run(self, kind: OwnerKind, obj: Any, workload: Object) -> None:
        """``startJob``: ``RunWithPodSetsInfo`` with ``getPodSetsInfoFromStatus``."""
        name = workload["metadata"]["name"]
        infos = [
            {
                "annotations": {"kueue.x-k8s.io/workload": name},
                "labels": {  # AssignmentLabels (reconciler.go), PodSetLabel
                    "kueue.x-k8s.io/podset": one["name"],
                    "kueue.x-k8s.io/local-queue-name": workload["spec"]["queueName"],
                    "kueue.x-k8s.io/cluster-queue-name": "all",
                },
                "nodeSelector": FLAVOR,
            }
            for one in workload["spec"]["podSets"]
        ]
        if kind is TRAINJOB:
            _own_entry(obj)["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"] = [
                {
                    "name": one["name"],
                    "template": {
                        "spec": {
                            "template": {
                                "metadata": {"annotations": info["annotations"], "labels": info["labels"]},
                                "spec": {"nodeSelector": info["nodeSelector"]},
                            }
                        }
                    },
                }
                for one, info in zip(workload["spec"]["podSets"], infos, strict=True)
            ]
        else:
            for path, info in zip(templates_of(kind, obj), infos, strict=True):
                _merge(at(obj, path), info)
        _set_suspended(kind, obj, False)
        self._kube.put(kind.resource, obj)

    # Looking

    def _workload_of(self, obj: Object) -> Any:
        uid = obj["metadata"]["uid"]
        found = (one for one in self._kube.list(QUEUE_WORKLOADS) if one["metadata"]["ownerReferences"][0]["uid"] == uid)
        return next((copy.deepcopy(dict(one)) for one in found), None)

    def _workload_of_name(self, name: str) -> Any:
        found = self._kube.list(QUEUE_WORKLOADS)
        return copy.deepcopy(dict(next(one for one in found if one["metadata"]["ownerReferences"][0]["name"] == name)))

    def _now(self, kind: OwnerKind, obj: Object) -> Object:
        uid = obj["metadata"]["uid"]
        return next(one for one in self._kube.list(kind.resource) if one["metadata"]["uid"] == uid)


def _pod_templates(kind: OwnerKind, obj: Any) -> list[tuple[str, Any]]:
    """``PodSets`` of each integration: names and templates."""
    if kind is TRAINJOB:
        return runtime_templates(obj)
    paths = templates_of(kind, obj)
    return [("main" if kind is JOB else f"set-{index}", at(obj, path)) for index, path in enumerate(paths)]


def _merge(template: Any, info: Mapping[str, Mapping[str, str]]) -> None:
    """pkg/podset/podset.go, ``Merge``: two values for one name fail the job for good."""
    metadata, spec = template.setdefault("metadata", {}), template["spec"]
    for holder, name in ((metadata, "annotations"), (metadata, "labels"), (spec, "nodeSelector")):
        there = holder.get(name) or {}
        assert all(there.get(key, value) == value for key, value in info[name].items()), "ErrInvalidPodSetUpdate"
        holder[name] = {**there, **info[name]}


def _restore(template: Any, kept: Any) -> None:
    """pkg/podset/podset.go, ``RestorePodSpec``: these are set to the Workload's, whatever is there."""
    metadata = template.setdefault("metadata", {})
    for name in ("annotations", "labels"):
        metadata[name] = copy.deepcopy(at(kept, ("metadata", name)) or {})
    template["spec"]["nodeSelector"] = copy.deepcopy(at(kept, ("spec", "nodeSelector")) or {})


def _own_entry(trainjob: Any) -> Any:
    """``getKueueRuntimePatch``; its webhook makes one for every TrainJob (trainjob_webhook.go)."""
    entries = trainjob["spec"].setdefault("runtimePatches", [])
    if not any(entry["manager"] == MANAGER for entry in entries):
        spec: Any = {"template": {"spec": {"replicatedJobs": []}}}
        entries.append({"manager": MANAGER, "trainingRuntimeSpec": spec})
    return next(entry for entry in entries if entry["manager"] == MANAGER)


def _is_suspended(kind: OwnerKind, obj: Object) -> bool:
    """``IsSuspended`` of each integration."""
    assert kind.suspend is not None
    stopping = kind is JOB and (obj["metadata"].get("annotations") or {}).get(STOPPING) == "true"
    return bool(at(obj, kind.suspend)) and not stopping


def _set_suspended(kind: OwnerKind, obj: Any, suspended: bool) -> None:
    assert kind.suspend is not None
    at(obj, kind.suspend[:-1])[kind.suspend[-1]] = suspended


def _is_active(kind: OwnerKind, obj: Object) -> bool:
    """``IsActive`` of each integration. Pods of a Job that terminate do not count, so its quota is given to others
    while they still run."""
    if kind is JOB:
        return bool(at(obj, ("status", "active")))
    if kind.name == "RayJob":
        return (at(obj, ("status", "jobDeploymentStatus")) or "") not in ("", "Suspended")
    return kind.busy(obj.get("status") or {})


def _assigned(workload: Object) -> list[Any]:
    """The only flavor, for all that the containers ask for."""
    sets = workload["spec"]["podSets"]
    asked = [
        [at(one, ("resources", "limits")) or {} for one in each["template"]["spec"]["containers"]] for each in sets
    ]
    flavors = [{name: "h100" for limits in each for name in limits} for each in asked]
    return [{"name": each["name"], "flavors": found} for each, found in zip(sets, flavors, strict=True)]


def _evict(workload: Any, reason: str) -> None:
    """pkg/workload/evict: checks wait from then on (``ResetChecksOnEviction``), quota is given back later."""
    _say(workload, "Evicted", "True", reason)
    for one in workload["status"].get("admissionChecks", ()):
        one |= {"state": "Pending", "message": "Reset to Pending after eviction."}


def _say(workload: Any, name: str, status: str, reason: str | None) -> None:
    conditions = workload.setdefault("status", {}).setdefault("conditions", [])
    conditions[:] = [one for one in conditions if one["type"] != name]
    conditions.append({"type": name, "status": status, "reason": reason, "lastTransitionTime": EARLIER})


def _reason(workload: Object, name: str, status: str) -> str | None:
    """The reason of a condition with that status; ``None``: there is none."""
    conditions = at(workload, ("status", "conditions")) or ()
    return next((one["reason"] for one in conditions if one["type"] == name and one["status"] == status), None)
