"""The order by which a workload is started again: what it says, and what it must not say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.incidents.actions import JobTarget
from tidegauge.core.jobs.settings import may_set
from tidegauge_scheduler_hooks.kubernetes.copies import COPIED_KINDS
from tidegauge_scheduler_hooks.kubernetes.intents import Changes, IncidentIntent, RequeueOrder, Stopped, encode, merged
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, next_attempt
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges


def wanted_changes(target: JobTarget, changes: RequeueChanges) -> Changes:
    """Raises ``PermanentError`` for what the injection would not set."""
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
    """Raises ``PermanentError`` for what no annotation can hold."""
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
