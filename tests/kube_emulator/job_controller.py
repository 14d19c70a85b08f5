"""The Job controller: pods of each Job as its specification and history demand, and the Job's status.

After ``results/job_semantics.txt`` of the project's notes and the Job documentation. Left out: back-off between
failures (a failed pod is replaced at once), ``backoffLimitPerIndex``, ``successPolicy``, ``activeDeadlineSeconds``,
``ttlSecondsAfterFinished``, ``managedBy`` other controllers (such Jobs are left alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kube_emulator.accounts import ADMINS, User
from kube_emulator.api import Api
from kube_emulator.clock import now
from kube_emulator.deletion import delete
from kube_emulator.errors import ApiError
from kube_emulator.garbage import drop_finalizers
from kube_emulator.job_pods import (
    INDEX,
    TRACKING,
    JobPods,
    Outcome,
    classify,
    counted_failures,
    failing_rule,
    intervals,
    missing_indexes,
    new_pod,
    parse_intervals,
)
from kube_emulator.requests import Request
from kube_emulator.resources import JOBS, PODS
from kube_emulator.store import Object, StaleError, key_of

_ITSELF = User("system:serviceaccount:kube-system:job-controller", frozenset({ADMINS}))
_MANAGED_HERE = "kubernetes.io/job-controller"


class JobController:
    """Everything it knows of Jobs is in the objects."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.refused = False
        """A pod could not be made in the latest round."""

    def sync(self) -> None:
        """Each Job once. Raises ``StaleError``; whatever was done until then stays valid."""
        self.refused = False
        for job in self._api.store.of_kind(JOBS.group, JOBS.plural):
            if job["spec"].get("managedBy", _MANAGED_HERE) == _MANAGED_HERE:
                self._sync_job(job)
        self._free_orphans()

    def _free_orphans(self) -> None:
        """Pods that a Job left behind are held by nobody."""
        jobs = {job["metadata"]["uid"] for job in self._api.store.of_kind(JOBS.group, JOBS.plural)}
        for pod in self._api.store.of_kind("", PODS.plural):
            owners = pod["metadata"].get("ownerReferences") or []
            if not any(owner.get("controller") and owner["uid"] in jobs for owner in owners):
                self._free([pod])

    def _sync_job(self, job: Object) -> None:
        pods = classify(job, self._pods_of(job))
        if "deletionTimestamp" in job["metadata"]:
            self._free(pods.all)  # the garbage collector does the rest; nothing may hold the pods
            return
        if _condition(job, "Complete") or _condition(job, "Failed"):
            self._free(pods.ended)
            return
        job = self._count(job, pods)
        pods = classify(job, self._pods_of(job))
        if _condition(job, "FailureTarget"):
            self._end_failed(job, pods)
        elif job["spec"].get("suspend"):
            self._suspend(job, pods)
        else:
            self._run(job, pods)

    def _pods_of(self, job: Object) -> list[Object]:
        return [
            pod
            for pod in self._api.store.of_kind("", PODS.plural, job["metadata"]["namespace"])
            if any(
                owner["uid"] == job["metadata"]["uid"] and owner.get("controller")
                for owner in pod["metadata"].get("ownerReferences") or []
            )
        ]

    def _count(self, job: Object, pods: JobPods) -> Object:
        """Pods that have ended are counted once; the finalizer is what says that one was not counted yet. The failure
        policy goes by all that failed, also those that a suspension ended and that do not count (upstream: syncJob,
        getFailJobMessage)."""
        fresh = [pod for pod in pods.ended if TRACKING in (pod["metadata"].get("finalizers") or [])]
        decided = _condition(job, "FailureTarget")
        failed = [] if decided else [pod for pod in pods.ended if pods.outcome(pod) is Outcome.FAILED]
        rule = next((found for pod in failed if (found := failing_rule(job, pod)) is not None), None)
        if not fresh and rule is None:
            return job
        succeeded = [pod for pod in fresh if pods.outcome(pod) is Outcome.SUCCEEDED]
        status = job.get("status") or {}
        changes: dict[str, Any] = {"failed": (status.get("failed") or 0) + counted_failures(job, pods, fresh)}
        if job["spec"]["completionMode"] == "Indexed":
            done = parse_intervals(status.get("completedIndexes", ""))
            done |= {int(pod["metadata"]["annotations"][INDEX]) for pod in succeeded}
            changes.update(completedIndexes=intervals(done), succeeded=len(done))
        else:
            changes["succeeded"] = (status.get("succeeded") or 0) + len(succeeded)
        limit = job["spec"]["backoffLimit"]
        if rule is not None:
            changes["conditions"] = _with_condition(job, "FailureTarget", "PodFailurePolicy", rule)
        elif not decided and changes["failed"] > limit:
            told = "Job has reached the specified backoff limit"
            changes["conditions"] = _with_condition(job, "FailureTarget", "BackoffLimitExceeded", told)
        job = self._write_status(job, **{key: value for key, value in changes.items() if value not in (0, "")})
        self._free(fresh)
        return job

    def _free(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            if TRACKING in (pod["metadata"].get("finalizers") or []):
                drop_finalizers(
                    self._api, key_of(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"]), pod, {TRACKING}
                )

    def _delete(self, pods: Sequence[Object]) -> None:
        for pod in pods:
            key = key_of(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])
            try:
                delete(self._api.store, PODS, key, {"preconditions": {"uid": pod["metadata"]["uid"]}})
            except ApiError as error:
                if error.code not in (404, 409):
                    raise

    def _suspend(self, job: Object, pods: JobPods) -> None:
        """Nothing is counted against a suspended Job: its pods lose the finalizer before they are deleted."""
        self._free(pods.active)
        self._delete([pod for pod in self._pods_of(job) if classify(job, [pod]).active])
        remaining = classify(job, self._pods_of(job))
        conditions = (job.get("status") or {}).get("conditions")
        if _condition(job, "Suspended") is not True:
            conditions = _with_condition(job, "Suspended", "JobSuspended", "Job suspended")
        self._write_status(job, conditions=conditions, startTime=None, **_live_counts(remaining))

    def _run(self, job: Object, pods: JobPods) -> None:
        spec, status = job["spec"], job.get("status") or {}
        changes: dict[str, Any] = {}
        if not status.get("startTime"):
            changes["startTime"] = now()
        if _condition(job, "Suspended") is True:
            changes["conditions"] = _with_condition(job, "Suspended", "JobResumed", "Job resumed", value=False)
        succeeded, completions = status.get("succeeded") or 0, spec.get("completions")
        enough = succeeded >= completions if completions is not None else succeeded > 0 and not pods.active
        if enough:
            self._finish(self._write_status(job, **changes), pods)
            return
        waiting = len(pods.terminating) if spec["podReplacementPolicy"] == "Failed" else 0
        wanted = spec["parallelism"]
        if completions is not None:
            wanted = min(wanted, completions - succeeded)
        elif succeeded:
            wanted = len(pods.active)
        surplus = len(pods.active) - wanted
        if surplus > 0:
            self._free(pods.active[-surplus:])
            self._delete(classify(job, self._pods_of(job)).active[-surplus:])
        made = max(0, wanted - len(pods.active) - waiting)
        indexes = missing_indexes(job, pods)[:made] if spec["completionMode"] == "Indexed" else [None] * made
        job = self._write_status(job, **changes)
        for index in indexes:
            self._create(job, index)
        self._write_status(job, **_live_counts(classify(job, self._pods_of(job))))

    def _create(self, job: Object, index: int | None) -> None:
        request = Request(
            _ITSELF, "POST", PODS, job["metadata"]["namespace"], "", "", {}, new_pod(job, index), "", "job-controller"
        )
        try:
            self._api.create(request)
        except ApiError:  # Pod Security, a webhook: tried again in a moment, as the cause may lie outside
            self.refused = True

    def _finish(self, job: Object, pods: JobPods) -> None:
        if pods.active or pods.terminating:
            self._delete(pods.active)
            return
        conditions = job["status"].get("conditions") or []
        told = "Reached expected number of succeeded pods"
        for name in ("SuccessCriteriaMet", "Complete"):
            conditions = _conditions_with(conditions, name, "CompletionsReached", told, value=True)
        self._write_status(job, conditions=conditions, completionTime=now(), **_live_counts(pods))

    def _end_failed(self, job: Object, pods: JobPods) -> None:
        """``Failed`` comes when the last pod has ended."""
        self._delete(pods.active)
        if pods.active or pods.terminating:
            self._write_status(job, **_live_counts(classify(job, self._pods_of(job))))
            return
        target = next(each for each in job["status"]["conditions"] if each["type"] == "FailureTarget")
        self._write_status(
            job, conditions=_with_condition(job, "Failed", target["reason"], target["message"]), **_live_counts(pods)
        )

    def _write_status(self, job: Object, **changes: Any) -> Object:
        """``None`` removes a field. The Job as it is afterwards. Raises ``StaleError``."""
        status = {**(job.get("status") or {}), **changes}
        status = {key: value for key, value in status.items() if value is not None}
        key = key_of(JOBS, job["metadata"]["namespace"], job["metadata"]["name"])
        if self._api.store.get(key) is not job:
            raise StaleError
        return self._api.store.update(key, job, {**job, "status": status})


def _live_counts(pods: JobPods) -> dict[str, Any]:
    return {
        "active": len(pods.active) or None,
        "terminating": len(pods.terminating),
        "ready": sum(_ready(pod) for pod in pods.active),
    }


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _condition(job: Object, name: str) -> bool | None:
    """Whether it is true; ``None`` if it was never set."""
    for each in (job.get("status") or {}).get("conditions") or []:
        if each["type"] == name:
            return bool(each["status"] == "True")
    return None


def _with_condition(job: Object, name: str, reason: str, message: str, *, value: bool = True) -> list[dict[str, Any]]:
    conditions = (job.get("status") or {}).get("conditions") or []
    return _conditions_with(conditions, name, reason, message, value=value)


def _conditions_with(
    conditions: Sequence[dict[str, Any]], name: str, reason: str, message: str, *, value: bool
) -> list[dict[str, Any]]:
    moment = now()
    new = {
        "type": name,
        "status": "True" if value else "False",
        "reason": reason,
        "message": message,
        "lastProbeTime": moment,
        "lastTransitionTime": moment,
    }
    return [*(each for each in conditions if each["type"] != name), new]
