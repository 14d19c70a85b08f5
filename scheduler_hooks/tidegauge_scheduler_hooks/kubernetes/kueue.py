"""Kueue: the Workload of a job is what is switched off and on. Kueue resumes an admitted job at once, so suspending the
job itself would not last (jobframework/reconciler.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.owners import at, controller_of
from tidegauge_scheduler_hooks.kubernetes.ports import ForbiddenError, KubeApi, Object, ObjectNotFoundError, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload

QUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
"""Kueue 0.15 and later."""
ADMISSION_CHECKS = Resource("kueue.x-k8s.io", "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
RESOURCE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)


def find_queue_workload(api: KubeApi, workload: Workload) -> Object | None:
    """Kueue's Workload that stands for a workload; ``None`` without one, and where there is no Kueue.

    If the workload names no queue, a role that may not read Workloads is taken for a cluster without Kueue. Raises
    ``TemporaryError``, ``PermanentError``.
    """
    try:
        found = api.list(QUEUE_WORKLOADS, workload.namespace)
    except ObjectNotFoundError:
        return None
    except ForbiddenError:
        if workload.queue is not None:
            raise
        return None
    owned = (item for item in found if (owner := controller_of(item)) is not None and owner.uid == workload.uid)
    return next(owned, None)


def is_active(queue_workload: Object) -> bool:
    """``spec.active``; true where it is not written."""
    return at(queue_workload, ("spec", "active")) is not False


def active_patch(queue_workload: Object, active: bool) -> Mapping[str, Any]:
    """Have Kueue end it (reason Deactivated), or queue it again."""
    version = queue_workload["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"active": active}}
