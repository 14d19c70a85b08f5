"""Kueue: the Workload of a job is what is switched off and on. Kueue resumes an admitted job at once, so suspending the
job itself would not last (jobframework/reconciler.go)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.owners import Path, at, controller_of, is_true
from tidegauge_scheduler_hooks.kubernetes.ports import ForbiddenError, KubeApi, Object, ObjectNotFoundError, Resource
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload, annotations_of

QUEUE_WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads", "Workload")
"""Kueue 0.15 and later."""
ADMISSION_CHECKS = Resource("kueue.x-k8s.io", "v1beta2", "admissionchecks", "AdmissionCheck", namespaced=False)
RESOURCE_FLAVORS = Resource("kueue.x-k8s.io", "v1beta2", "resourceflavors", "ResourceFlavor", namespaced=False)


JOB_UID_LABEL = "kueue.x-k8s.io/job-uid"
"""On each Workload, prebuilt ones included: the uid of its job (jobframework/reconciler.go)."""
REPLACES = "kueue.x-k8s.io/workload-slice-replacement-for"
"""Annotation of the Workload that an elastic job gets when it grows: the key of the one before
(workloadslicing/workloadslicing.go)."""


def find_queue_workload(api: KubeApi, workload: Workload) -> Object | None:
    """Kueue's Workload that stands for a workload; ``None`` without one, and where there is no Kueue. Of an elastic
    job's two it is the newer one, as for Kueue itself (``EnsureWorkloadSlices``).

    If the workload names no queue, a role that may not read Workloads is taken for a cluster without Kueue. Raises
    ``TemporaryError``, ``PermanentError``.
    """
    try:
        found = api.list(QUEUE_WORKLOADS, workload.namespace, label_selector=f"{JOB_UID_LABEL}={workload.uid}")
    except ObjectNotFoundError:
        return None
    except ForbiddenError:
        if workload.queue is not None:
            raise
        return None
    # A label is anybody's word.
    owned = [item for item in found if (owner := controller_of(item)) is not None and owner.uid == workload.uid]
    unfinished = [item for item in owned if not is_true(item, "Finished")]
    replaced = {annotations_of(item).get(REPLACES) for item in unfinished}

    def age(item: Object) -> tuple[str, bool]:
        metadata = item["metadata"]
        return metadata.get("creationTimestamp") or "", f"{metadata['namespace']}/{metadata['name']}" not in replaced

    return max(unfinished, key=age, default=None)


ACTIVE: Path = ("spec", "active")


def is_active(queue_workload: Object) -> bool:
    """``spec.active``; true where it is not written."""
    return at(queue_workload, ACTIVE) is not False


def active_patch(queue_workload: Object, active: bool) -> Mapping[str, Any]:
    """Have Kueue end it (reason Deactivated), or queue it again."""
    version = queue_workload["metadata"]["resourceVersion"]
    return {"metadata": {"resourceVersion": version}, "spec": {"active": active}}
