"""Whose things are counted together, where nobody may take all the room. Source-compatible with Python 3.9."""

from __future__ import annotations

from typing import NamedTuple, Optional

from tidegauge.core.incidents import JobKey
from tidegauge.core.kubernetes import namespace_of


class Tenant(NamedTuple):
    """A user, and on Kubernetes, where people share uids, a namespace."""

    uid: int
    namespace: Optional[str] = None

    def __str__(self) -> str:
        return f"uid {self.uid}" if self.namespace is None else f"namespace {self.namespace} (uid {self.uid})"


def tenant_of(job: JobKey) -> Tenant:
    """Whose a job is."""
    return Tenant(job.uid, namespace_of(job.job_id))
