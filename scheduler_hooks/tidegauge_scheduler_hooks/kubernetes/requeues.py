"""Orders to start a workload again, and copies of workloads that the injection does not reach. Pure."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from tidegauge.core.alloc_conf import ALLOCATOR_VARIABLES
from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, COPY_OF, ENDED, INCIDENT, REMARK, REQUEUE, STOPPED
from tidegauge.core.jobs.settings import JobSettings, changes, may_set
from tidegauge.core.jobs.variables import ATTEMPT_VARIABLE
from tidegauge_scheduler_hooks.kubernetes.injection.shares import asks_for_gpu
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, IncidentIntent, RequeueOrder, Stopped, encode, merged
from tidegauge_scheduler_hooks.kubernetes.owners import JOB, JOBSET, at
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, job_name, next_attempt
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges

COPIED_KINDS = frozenset({JOB.name, JOBSET.name})
MAX_NAME_CHARS = 63
"""Of a name that becomes a label of pods and a part of host names (RFC 1123)."""
GENERATED_LABELS = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
"""The Job controller's, in the template of every Job: with them a copy is refused."""
_NOT_COPIED = (
    REQUEUE, STOPPED, INCIDENT, REMARK, ENDED, ATTEMPT, CHANGES,
    "kubectl.kubernetes.io/last-applied-configuration",  # "kubectl apply" would take the copy for the first one
    "batch.kubernetes.io/job-tracking",
)  # fmt: skip


def copy_name(name: str, attempt: int) -> str:
    """``train-t2``: the same for the same attempt, so that a copy is not made twice; a name that is too long is cut,
    with digits that keep it unique."""
    end = f"-t{attempt}"
    if len(name) + len(end) > MAX_NAME_CHARS:
        end = f"-{hashlib.sha256(name.encode()).hexdigest()[:8]}{end}"
    return name[: MAX_NAME_CHARS - len(end)].rstrip("-.") + end


def copy_of(workload: Workload, order: RequeueOrder) -> dict[str, Any]:
    """The body to create: as its owner submitted it, with the changes of ``order`` in its containers' environment.

    It belongs to no controller, keeps the queue, and stays known under the first one's name (``COPY_OF``).
    Raises ``ValueError`` if such a workload cannot be copied.
    """
    kind, obj = workload.kind, workload.obj
    if kind.name not in COPIED_KINDS:
        raise ValueError(f"a {kind.name} cannot be copied; only {' and '.join(sorted(COPIED_KINDS))} can")
    first, metadata = job_name(obj), obj["metadata"]
    if len(first) > MAX_NAME_CHARS:
        raise ValueError(f"its name is longer than {MAX_NAME_CHARS} characters, too long for a label")
    wanted = merged(workload.changes, order.changes)
    body: dict[str, Any] = {
        "apiVersion": kind.resource.api_version,
        "kind": kind.name,
        "metadata": {
            "name": copy_name(first, order.attempt),
            "namespace": metadata["namespace"],
            "labels": {**_without(metadata.get("labels"), GENERATED_LABELS), COPY_OF: first},
            "annotations": {
                **_without(metadata.get("annotations"), _NOT_COPIED),
                ATTEMPT: str(order.attempt),
                **({CHANGES: encode(wanted)} if wanted else {}),
            },
        },
        "spec": copy.deepcopy(obj["spec"]),
    }
    body["spec"]["suspend"] = False
    if kind is JOB:
        if body["spec"].pop("manualSelector", False):
            raise ValueError("it selects its pods itself (manualSelector), and a copy would take them over")
        body["spec"].pop("selector", None)
    for path in kind.templates(body):
        _change_template(at(body, path), wanted, order)
    return body


def _change_template(template: Any, wanted: Changes, order: RequeueOrder) -> None:
    metadata = template.get("metadata") or {}
    if metadata.get("labels"):
        metadata["labels"] = _without(metadata["labels"], GENERATED_LABELS)
    metadata["annotations"] = {**(metadata.get("annotations") or {}), ATTEMPT: str(order.attempt)}
    template["metadata"] = metadata
    containers = template["spec"]["containers"]
    with_gpu = [container for container in containers if asks_for_gpu(container)]
    for container in with_gpu or containers:
        container["env"] = _environment(container.get("env") or (), wanted, order.attempt)


def _environment(given: Sequence[Mapping[str, Any]], wanted: Changes, attempt: int) -> list[Mapping[str, Any]]:
    """The variables of a container with ours in place of those of the same name."""
    values = {one["name"]: one.get("value") or "" for one in given if not one.get("valueFrom")}
    hidden = [one["name"] for one in given if one.get("valueFrom") and one["name"] in ALLOCATOR_VARIABLES]
    if hidden and wanted.alloc_conf:
        raise ValueError(f"{hidden[0]} is set by valueFrom: allocator settings cannot be merged into an unknown value")
    settings = JobSettings(
        job_id="", uid=0, environ=wanted.environ, alloc_conf=wanted.alloc_conf, torch_version=wanted.torch_version
    )
    ours = {**changes(settings, values), ATTEMPT_VARIABLE: str(attempt)}
    kept = [one for one in given if one["name"] not in ours]
    return [*kept, *({"name": name, "value": value} for name, value in sorted(ours.items()))]


def _without(found: Mapping[str, str] | None, names: Sequence[str]) -> dict[str, str]:
    return {name: value for name, value in (found or {}).items() if name not in names}


def wanted_changes(target: JobTarget, changes: RequeueChanges) -> Changes:
    """The changes. Raises ``PermanentError`` for those that the injection would not set."""
    refused = [name for name in changes.environ if not may_set(name)]
    if refused:
        raise PermanentError(f"job {target.job.job_id}: {refused[0][:60]} is not a variable that Tidegauge sets")
    torch_version = target.handle.get("torch_version")
    return Changes(changes.environ, changes.alloc_conf, torch_version if isinstance(torch_version, str) else None)


def requeue_order(
    workload: Workload,
    wanted: Changes,
    reason: str,
    *,
    decision_id: str,
    at_unix_s: float,
    earlier: Sequence[int],
    resubmit: bool,
) -> str:
    """The annotation ``REQUEUE``. ``earlier``: as in ``next_attempt``; ``resubmit``: copies are allowed.

    Raises ``PermanentError`` if such changes cannot be made."""
    order = RequeueOrder(
        decision=decision_id,
        attempt=next_attempt(workload, earlier),
        reason=reason,
        at=at_unix_s,
        mark=workload.incarnation,
        environ=wanted.environ,
        alloc_conf=wanted.alloc_conf,
        torch_version=wanted.torch_version,
        copy=_needs_copy(workload, wanted, resubmit=resubmit),
    )
    encoded(workload, merged(workload.changes, wanted))  # what the controller will have to write
    return encoded(workload, order)


def encoded(workload: Workload, intent: Changes | RequeueOrder | Stopped | IncidentIntent) -> str:
    """The annotation's text. Raises ``PermanentError`` for an intent that does not fit into an annotation."""
    try:
        return encode(intent)
    except ValueError as error:
        raise PermanentError(f"{workload.title}: these settings cannot be applied: {error}") from error


def _needs_copy(workload: Workload, wanted: Changes, *, resubmit: bool) -> bool:
    """Whether changes can only come into effect in a copy. Raises ``PermanentError`` if there can be none."""
    if workload.injected or not merged(workload.changes, wanted):
        return False
    if resubmit and workload.kind.name in COPIED_KINDS:
        return True
    raise PermanentError(
        f"{workload.title}: its pods were not injected by Tidegauge, so their environment cannot be changed; label "
        f"the pod template (docs/kubernetes_jobs.md), or allow copies of {' and '.join(sorted(COPIED_KINDS))}"
    )
