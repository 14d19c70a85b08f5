"""Orders to start a workload again. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.settings import may_set
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, IncidentIntent, RequeueOrder, Stopped, encode, merged
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, next_attempt
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges


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
) -> str:
    """The annotation ``REQUEUE``. ``earlier``: as in ``next_attempt``.

    Raises ``PermanentError`` if such changes cannot be made."""
    if merged(workload.changes, wanted) and not workload.injected:
        raise PermanentError(
            f"{workload.title}: settings reach only pods that Tidegauge's webhook has prepared, and not all of its "
            "pods are: label the pod template (docs/kubernetes_jobs.md). injection.mode=policy cannot set them"
        )
    order = RequeueOrder(
        decision=decision_id,
        attempt=next_attempt(workload, earlier),
        reason=reason,
        at=at_unix_s,
        mark=workload.incarnation,
        environ=wanted.environ,
        alloc_conf=wanted.alloc_conf,
        torch_version=wanted.torch_version,
    )
    encoded(workload, merged(workload.changes, wanted))  # what the controller will have to write
    return encoded(workload, order)


def encoded(workload: Workload, intent: Changes | RequeueOrder | Stopped | IncidentIntent) -> str:
    """The annotation's text. Raises ``PermanentError`` for an intent that does not fit into an annotation."""
    try:
        return encode(intent)
    except ValueError as error:
        raise PermanentError(f"{workload.title}: these settings cannot be applied: {error}") from error
