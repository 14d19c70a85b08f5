"""A Job's pods: what became of them, what the pod failure policy says, and what a new one looks like. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from kube_emulator.store import Object

TRACKING = "batch.kubernetes.io/job-tracking"
INDEX = "batch.kubernetes.io/job-completion-index"


class Outcome(Enum):
    """What a pod is to its Job."""

    ACTIVE = "active"
    TERMINATING = "terminating"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class JobPods(NamedTuple):
    """All pods of a Job, and which of them are what."""

    all: Sequence[Object]
    outcomes: Mapping[str, Outcome]

    def outcome(self, pod: Object) -> Outcome:
        return self.outcomes[pod["metadata"]["uid"]]

    @property
    def active(self) -> list[Object]:
        return [pod for pod in self.all if self.outcome(pod) is Outcome.ACTIVE]

    @property
    def ended(self) -> list[Object]:
        return [pod for pod in self.all if self.outcome(pod) in (Outcome.SUCCEEDED, Outcome.FAILED)]

    @property
    def terminating(self) -> list[Object]:
        """Being deleted and not yet ended: they may still run."""
        return [pod for pod in self.all if "deletionTimestamp" in pod["metadata"] and not _over(pod)]


def classify(job: Object, pods: Iterable[Object]) -> JobPods:
    """A pod that is being deleted counts as failed at once; with ``podReplacementPolicy: Failed`` when it has ended."""
    listed = list(pods)
    at_once = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed"
    return JobPods(listed, {pod["metadata"]["uid"]: _outcome(pod, at_once) for pod in listed})


def _outcome(pod: Object, at_once: bool) -> Outcome:
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Succeeded":
        return Outcome.SUCCEEDED
    if phase == "Failed":
        return Outcome.FAILED
    if "deletionTimestamp" not in pod["metadata"]:
        return Outcome.ACTIVE
    return Outcome.FAILED if at_once or _over(pod) else Outcome.TERMINATING


def _over(pod: Object) -> bool:
    """It does not run any more: it has ended, no node ever had it, or its node has given it up (no grace left)."""
    phase, metadata = (pod.get("status") or {}).get("phase"), pod["metadata"]
    gone = "deletionTimestamp" in metadata and not metadata.get("deletionGracePeriodSeconds")
    return phase in ("Succeeded", "Failed") or gone or not pod["spec"].get("nodeName")


def counted_failures(job: Object, pods: JobPods, fresh: Sequence[Object]) -> int:
    """Those of the pods that failed and that no rule says to ignore."""
    failed = [pod for pod in fresh if pods.outcome(pod) is Outcome.FAILED]
    return sum(_action(job, pod)[0] != "Ignore" for pod in failed)


def failing_rule(job: Object, pod: Object) -> str | None:
    """The message of a failed Job, if the policy fails the Job for this pod."""
    action, message = _action(job, pod)
    return message if action == "FailJob" else None


def _action(job: Object, pod: Object) -> tuple[str, str]:
    """Of the first rule that matches; ``Count`` where none does."""
    status, who = pod.get("status") or {}, f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    if status.get("phase") == "Succeeded":
        return "Count", ""
    for place, rule in enumerate((job["spec"].get("podFailurePolicy") or {}).get("rules") or []):
        codes = rule.get("onExitCodes")
        if codes is not None:
            for container, code in _exit_codes(status, codes.get("containerName")):
                if (code in codes["values"]) == (codes["operator"] == "In"):
                    told = f"Container {container} for pod {who} failed with exit code {code}"
                    return rule["action"], f"{told} matching {rule['action']} rule at index {place}"
        for pattern in rule.get("onPodConditions") or []:
            for condition in status.get("conditions") or []:
                if (condition["type"], condition["status"]) == (pattern["type"], pattern["status"]):
                    told = f"Pod {who} has condition {condition['type']}"
                    return rule["action"], f"{told} matching {rule['action']} rule at index {place}"
    return "Count", ""


def _exit_codes(status: Mapping[str, Any], container: str | None) -> Iterable[tuple[str, int]]:
    for field in ("initContainerStatuses", "containerStatuses"):
        for each in status.get(field) or []:
            code = ((each.get("state") or {}).get("terminated") or {}).get("exitCode", 0)
            if code and container in (None, each["name"]):
                yield each["name"], code


def missing_indexes(job: Object, pods: JobPods) -> list[int]:
    """Indexes that are neither done nor tried at this moment, lowest first."""
    done = parse_intervals((job.get("status") or {}).get("completedIndexes", ""))
    busy = (
        pods.active if job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed" else pods.active + pods.terminating
    )
    taken = {int(pod["metadata"]["annotations"][INDEX]) for pod in busy}
    return [index for index in range(job["spec"]["completions"]) if index not in done | taken]


def parse_intervals(text: str) -> set[int]:
    """``0-2,5`` as a set."""
    indexes: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        indexes.update(range(int(first), int(last or first) + 1))
    return indexes


def intervals(indexes: Iterable[int]) -> str:
    """The other way round; only three or more in a row are written with a hyphen."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    texts = [
        f"{first}-{last}" if last > first + 1 else ",".join(map(str, range(first, last + 1))) for first, last in runs
    ]
    return ",".join(texts)


def new_pod(job: Object, index: int | None) -> Object:
    """The pod of an index (``None``: the Job is not indexed). The server makes its name unique."""
    metadata, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
    name = metadata["name"]
    inner = template.get("metadata") or {}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": name,
        "uid": metadata["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
    pod: Object = {
        "metadata": {
            "generateName": f"{name}-" if index is None else f"{name}-{index}-",
            "labels": dict(inner.get("labels") or {}),
            "annotations": dict(inner.get("annotations") or {}),
            "finalizers": [*(inner.get("finalizers") or []), TRACKING],
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }
    if index is not None:
        _give_index(pod, f"{name}-{index}", index)
    return pod


def _give_index(pod: Object, hostname: str, index: int) -> None:
    pod["metadata"]["labels"][INDEX] = pod["metadata"]["annotations"][INDEX] = str(index)
    spec = pod["spec"]
    spec.setdefault("hostname", hostname)
    reference = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX}']"}}
    for container in [*(spec.get("initContainers") or []), *spec["containers"]]:
        variables = container.setdefault("env", [])
        if not any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in variables):
            variables.append({"name": "JOB_COMPLETION_INDEX", "valueFrom": reference})
