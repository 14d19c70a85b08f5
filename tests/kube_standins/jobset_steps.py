"""What a JobSet controller does next, by a JobSet and its Jobs. Values in, values out."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kube_standins.api import Object
from kube_standins.jobset_crd import API_VERSION, BLOCKING_RECREATE, FAIL, RESTART, RESTART_UNCOUNTED

PREFIX = "jobset.sigs.k8s.io/"
NAME, RESTART_ATTEMPT = PREFIX + "jobset-name", PREFIX + "restart-attempt"
REPLICATED_JOB = PREFIX + "replicatedjob-name"


@dataclass
class Steps:
    """To be done in this order. Jobs by name."""

    status: dict[str, Any] | None = None
    """The whole of it, where it is to change; nothing else is done then."""
    delete: list[str] = field(default_factory=list)
    patch: dict[str, dict[str, Any]] = field(default_factory=dict)
    create: list[dict[str, Any]] = field(default_factory=list)


def next_steps(jobset: Object, jobs: Sequence[Object], now: str) -> Steps:
    """``jobs``: those that the JobSet owns. ``now``: for conditions (metav1.Time)."""
    status: dict[str, Any] = {"restarts": 0, "restartsCountTowardsMax": 0, **(jobset.get("status") or {})}
    if jobset["metadata"].get("deletionTimestamp"):
        return Steps()
    if status.get("terminalState"):
        return Steps(delete=[_name(job) for job in jobs if not _ended(job) and not _leaving(job)])
    current = [job for job in jobs if _attempt(job) >= status["restarts"]]
    changed = _judged(jobset, current, status, now)
    if changed is None:
        changed = _with_suspension(jobset, _with_counts(jobset, current, status), now)
    if changed != jobset.get("status"):
        return Steps(status=changed)
    old = [job for job in jobs if _attempt(job) < status["restarts"]]
    steps = Steps(delete=[_name(job) for job in old if not _leaving(job)])
    strategy = (jobset["spec"].get("failurePolicy") or {}).get("restartStrategy")
    taken = {_name(job) for job in jobs}
    suspended = bool(jobset["spec"].get("suspend"))
    for job in wanted_jobs(jobset, status["restarts"]):
        name = job["metadata"]["name"]
        there = next((one for one in current if _name(one) == name), None)
        if there is not None:
            if bool(there["spec"].get("suspend")) != suspended and not _ended(there):
                steps.patch[name] = {"spec": {"suspend": True}} if suspended else _resumption(job)
        elif name not in taken and not (old and strategy == BLOCKING_RECREATE):
            steps.create.append(job)
    return steps


def wanted_jobs(jobset: Object, restarts: int) -> list[dict[str, Any]]:
    """The Jobs of one attempt, with the labels and annotations that tell a pod where it belongs."""
    metadata, spec = jobset["metadata"], jobset["spec"]
    replicated = spec.get("replicatedJobs") or ()
    everything = sum(each.get("replicas", 1) for each in replicated)
    jobs: list[dict[str, Any]] = []
    for each in replicated:
        for index in range(each.get("replicas", 1)):
            name = f"{metadata['name']}-{each['name']}-{index}"
            marks = {
                NAME: metadata["name"],
                PREFIX + "jobset-uid": metadata["uid"],
                REPLICATED_JOB: each["name"],
                PREFIX + "replicatedjob-replicas": str(each.get("replicas", 1)),
                PREFIX + "global-replicas": str(everything),
                PREFIX + "job-index": str(index),
                PREFIX + "job-global-index": str(len(jobs)),
                PREFIX + "job-key": hashlib.sha1(f"{metadata['namespace']}/{name}".encode()).hexdigest(),
                RESTART_ATTEMPT: str(restarts),
            }
            jobs.append(_job(jobset, each["template"], name, marks))
    return jobs


def _job(jobset: Object, template: Mapping[str, Any], name: str, marks: Mapping[str, str]) -> dict[str, Any]:
    metadata = jobset["metadata"]
    owner = {
        "apiVersion": API_VERSION, "kind": "JobSet", "name": metadata["name"], "uid": metadata["uid"],
        "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    pod = template["spec"]["template"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **_marked(template.get("metadata"), marks),
            "name": name,
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": {
            "completionMode": "Indexed",
            **template["spec"],
            "suspend": bool(jobset["spec"].get("suspend")),
            "template": {
                "metadata": _marked(pod.get("metadata"), marks),
                "spec": {"restartPolicy": "OnFailure", **pod["spec"]},
            },
        },
    }


def _marked(metadata: Mapping[str, Any] | None, marks: Mapping[str, str]) -> dict[str, Any]:
    """Labels and annotations both."""
    return {kind: {**((metadata or {}).get(kind) or {}), **marks} for kind in ("labels", "annotations")}


def _resumption(job: Mapping[str, Any]) -> dict[str, Any]:
    """What a suspended Job takes over of its JobSet's template before it goes on: all that may change in it."""
    template = job["spec"]["template"]
    spec = {key: template["spec"][key] for key in ("nodeSelector", "tolerations") if key in template["spec"]}
    return {"spec": {"suspend": False, "template": {"metadata": template["metadata"], "spec": spec}}}


def _judged(jobset: Object, jobs: Sequence[Object], status: dict[str, Any], now: str) -> dict[str, Any] | None:
    """The status once a Job has failed, or enough have succeeded; else ``None``."""
    failed = sorted((job for job in jobs if _condition(job, "Failed")), key=lambda job: _since(job, "Failed"))
    if failed:
        return _after_failure(jobset, failed[0], status, now)
    policy = jobset["spec"].get("successPolicy") or {}
    targets = policy.get("targetReplicatedJobs") or [each["name"] for each in jobset["spec"].get("replicatedJobs", ())]
    names = [each["metadata"]["name"] for each in wanted_jobs(jobset, 0)
             if each["metadata"]["labels"][REPLICATED_JOB] in targets]  # fmt: skip
    complete = [_name(job) for job in jobs if _condition(job, "Complete") and _name(job) in names]
    if complete and (policy.get("operator") == "Any" or len(complete) == len(names)):
        ended = {**status, "terminalState": "Completed"}
        return _with_condition(ended, "Completed", True, "AllJobsCompleted", "jobset completed successfully", now)
    return None


def _after_failure(jobset: Object, job: Object, status: dict[str, Any], now: str) -> dict[str, Any]:
    policy = jobset["spec"].get("failurePolicy")
    first = f"(first failed job: {_name(job)})"
    if policy is None:
        return _failed(status, "FailedJobs", f"jobset failed due to one or more job failures {first}", now)
    action = _action(policy, job)
    if action == FAIL:
        said = f"jobset failed due to FailJobSet failure policy action {first}"
        return _failed(status, "FailJobSetFailurePolicyAction", said, now)
    counted = status["restartsCountTowardsMax"]
    if action == RESTART and counted >= policy.get("maxRestarts", 0):
        said = f"jobset failed due to reaching max number of restarts {first}"
        return _failed(status, "ReachedMaxRestarts", said, now)
    counted += action != RESTART_UNCOUNTED
    return {**status, "restarts": status["restarts"] + 1, "restartsCountTowardsMax": counted}


def _action(policy: Mapping[str, Any], job: Object) -> str:
    """Of the first rule that fits; a JobSet begins again where none does."""
    reason = (_condition(job, "Failed") or {}).get("reason")
    replicated = job["metadata"]["labels"][REPLICATED_JOB]
    for rule in policy.get("rules") or ():
        reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
        if (not reasons or reason in reasons) and (not targets or replicated in targets):
            return str(rule["action"])
    return RESTART


def _failed(status: Mapping[str, Any], reason: str, message: str, now: str) -> dict[str, Any]:
    return _with_condition({**status, "terminalState": "Failed"}, "Failed", True, reason, message, now)


def _with_suspension(jobset: Object, status: Mapping[str, Any], now: str) -> dict[str, Any]:
    known = next((each for each in status.get("conditions") or () if each["type"] == "Suspended"), None)
    if jobset["spec"].get("suspend"):
        return _with_condition(status, "Suspended", True, "SuspendedJobs", "jobset is suspended", now)
    if known is not None:
        return _with_condition(status, "Suspended", False, "ResumeJobs", "jobset is resumed", now)
    return dict(status)


def _with_counts(jobset: Object, jobs: Sequence[Object], status: Mapping[str, Any]) -> dict[str, Any]:
    """``replicatedJobsStatus``: how many Jobs of each are how far."""
    rows = []
    for each in jobset["spec"].get("replicatedJobs") or ():
        own = [job for job in jobs if job["metadata"]["labels"][REPLICATED_JOB] == each["name"]]
        running = [job for job in own if not _ended(job) and not job["spec"].get("suspend")]
        active = [job for job in running if (job.get("status") or {}).get("active")]
        ready = [job for job in active if (job["status"].get("ready") or 0) >= (job["spec"].get("parallelism") or 1)]
        rows.append({
            "name": each["name"],
            "ready": len(ready),
            "active": len(active),
            "succeeded": sum(bool(_condition(job, "Complete")) for job in own),
            "failed": sum(bool(_condition(job, "Failed")) for job in own),
            "suspended": sum(bool(job["spec"].get("suspend")) for job in own),
        })  # fmt: skip
    return {**status, "replicatedJobsStatus": rows}


def _with_condition(
    status: Mapping[str, Any], kind: str, holds: bool, reason: str, message: str, now: str
) -> dict[str, Any]:
    conditions = list(status.get("conditions") or ())
    fresh = {"type": kind, "status": str(holds), "reason": reason, "message": message}
    for old in conditions:
        if old["type"] == kind and old["status"] == str(holds):
            return dict(status)
    others = [each for each in conditions if each["type"] != kind]
    return {**status, "conditions": [*others, {**fresh, "lastTransitionTime": now}]}


def _condition(job: Object, kind: str) -> Mapping[str, Any] | None:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind and each["status"] == "True"), None)


def _since(job: Object, kind: str) -> str:
    return str((_condition(job, kind) or {}).get("lastTransitionTime", ""))


def _ended(job: Object) -> bool:
    return _condition(job, "Failed") is not None or _condition(job, "Complete") is not None


def _leaving(job: Object) -> bool:
    return bool(job["metadata"].get("deletionTimestamp"))


def _name(job: Object) -> str:
    return str(job["metadata"]["name"])


def _attempt(job: Object) -> int:
    return int(job["metadata"]["labels"].get(RESTART_ATTEMPT, 0))
