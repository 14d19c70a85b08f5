"""Kubernetes namespaces of this node's pods: limits count all pods of a namespace as one tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.views import RankView


class NamespacesOfPods:
    """Maps pods to namespaces, learnt from their ranks: the head or kubelet names a namespace, never the pod itself.
    ``whose`` may be called from any thread."""

    def __init__(self) -> None:
        self._known: Mapping[str, str] = {}

    def learn(self, ranks: Iterable[RankView]) -> bool:
        """Replace all known ranks by these; whether that changes any pod's namespace."""
        before = self._known
        self._known = {
            rank.pod.pod_uid: rank.pod.namespace
            for rank in ranks
            if rank.pod is not None and rank.pod.namespace is not None
        }
        return self._known != before

    def whose(self, tenant: Tenant) -> Tenant:
        """The tenant to count: the namespace for a pod whose namespace is known, else ``tenant``."""
        namespace = None if tenant.pod_uid is None else self._known.get(tenant.pod_uid)
        return tenant if namespace is None else Tenant(None, namespace)
