"""Tenants: each limit applies per tenant, so that nobody can take all the room."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.ids import JobKey
from tidegauge.core.jobs.kubernetes import namespace_of


class Tenant(NamedTuple):
    """The tenant to whom every limit, share, breaker and quota counts a process or a job.

    On a bare node and in Slurm a uid; on Kubernetes a namespace, whose containers may run as any uid; in another
    container the container and the uid, as most engines run everybody's as root. What a user can make on his own
    is no tenant, or each would bring him another share: in a user namespace of his (``unshare --user``, rootless
    Podman), whatever uid a process has there, he is the tenant.
    """

    uid: Optional[int]
    """``None`` in pods."""
    namespace: Optional[str] = None
    pod_uid: Optional[str] = None
    """Of a pod whose namespace nobody has named yet."""
    container_id: Optional[str] = None
    """As the container engine calls it. Only within a node: a job of several nodes has a container on each."""

    def __str__(self) -> str:
        if self.uid is None:
            return f"pod {self.pod_uid}" if self.namespace is None else f"namespace {self.namespace}"
        container = "" if self.container_id is None else f" in container {self.container_id[:12]}"
        return f"uid {self.uid}{container}"


def itself(tenant: Tenant) -> Tenant:
    """The tenant unchanged: for where nobody names the namespaces of pods."""
    return tenant


def tenant_of(job: JobKey) -> Tenant:
    """The tenant of a job, over all its nodes."""
    namespace = namespace_of(job.job_id)
    return Tenant(job.uid) if namespace is None else Tenant(None, namespace)
