"""Whose things are counted together, where nobody may take all the room. Source-compatible with Python 3.9."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.incidents import JobKey
from tidegauge.core.kubernetes import PodPlace, namespace_of


class Tenant(NamedTuple):
    """A user; on Kubernetes a namespace: its containers may run as any uid, and those of others as the same."""

    uid: Optional[int]
    """``None`` in pods."""
    namespace: Optional[str] = None
    pod_uid: Optional[str] = None
    """Of a pod whose namespace nobody has said yet."""

    def __str__(self) -> str:
        if self.uid is not None:
            return f"uid {self.uid}"
        return f"pod {self.pod_uid}" if self.namespace is None else f"namespace {self.namespace}"


def tenant_of(job: JobKey) -> Tenant:
    """Whose a job is."""
    namespace = namespace_of(job.job_id)
    return Tenant(job.uid) if namespace is None else Tenant(None, namespace)


def tenant_of_process(uid: int, pod: Optional[PodPlace]) -> Tenant:
    """Whose a process is."""
    if pod is None:
        return Tenant(uid)
    return Tenant(None, None, pod.pod_uid) if pod.namespace is None else Tenant(None, pod.namespace)
