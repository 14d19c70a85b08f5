"""Kueue: where a Workload stands for a job, it is what is switched off and on. Kueue resumes an admitted job at once,
so to suspend the job itself would not last (jobframework/reconciler.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.owners import at, controller_of
from tidegauge_scheduler_hooks.kubernetes.ports import ForbiddenError, KubeApi, Object, ObjectNotFoundError, Resource

QUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
"""Kueue 0.15 and later."""


def find_queue_workload(api: KubeApi, namespace: str, owner_uid: str, *, queued: bool) -> Object | None:
    """The Workload that stands for an object; ``None`` without one, and where there is no Kueue.

    ``queued``: the object says that it goes through Kueue. If it does not, a role that may not look at Workloads is
    taken for a cluster without Kueue. Raises ``TemporaryError``, ``PermanentError``.
    """
    try:
        found = api.list(QUEUE_WORKLOADS, namespace)
    except ObjectNotFoundError:
        return None
    except ForbiddenError:
        if queued:
            raise
        return None
    owned = (item for item in found if (owner := controller_of(item)) is not None and owner.uid == owner_uid)
    return next(owned, None)


def is_active(queue_workload: Object) -> bool:
    """``spec.active``; true where it is not written."""
    return at(queue_workload, ("spec", "active")) is not False


def active_patch(queue_workload: Object, active: bool) -> Mapping[str, Any]:
    """Have Kueue end it (reason Deactivated), or queue it again."""
    version = queue_workload["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"active": active}}
