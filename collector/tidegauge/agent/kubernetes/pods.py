"""Identities of this node's pods: reports ask the head for them; they are kept while a pod has ranks here.

The agent itself has no rights at the API server. The head answers in its reply (``ReportReply.pods``), a second or two
after the first sight of a rank. Limits count all pods of a namespace as one tenant.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tidegauge.agent.ports import NoPlace
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.views import RankView

PATIENCE_S = 10.0
"""How long a rank waits for the head's answer before it is shown without."""
REFRESH_S = 30.0
"""Facts older than this are asked for again: an owner may be named later, a container be started again."""
MAX_PODS = 512
"""In one report: each has a rank, and an agent watches no more ranks than this."""


@dataclass
class _Pod:
    since_s: float
    facts: PodFacts | None = None
    heard_s: float = float("-inf")
    containers: dict[str, float] = field(default_factory=dict)
    """Those with ranks, by id, and when each was first seen."""


class PodBook:
    """The head's answers about each pod. Thread-safe: polls read it, replies to reports fill it."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._pods: dict[str, _Pod] = {}

    def facts_of(self, pod: PodCgroup) -> PodFacts | NoPlace:
        """The head's answer about the pod; before its first, ``WAITING``, later ``SILENT``. The call records
        that there is a rank in it."""
        now_s = self._monotonic_s()
        with self._lock:
            known = self._pods.setdefault(pod.pod_uid, _Pod(since_s=now_s))
            if pod.container_id is not None:
                known.containers.setdefault(pod.container_id, now_s)
            if known.facts is not None:
                return known.facts
            return NoPlace.WAITING if now_s - known.since_s <= PATIENCE_S else NoPlace.SILENT

    def wanted(self) -> tuple[str, ...]:
        """Pods for ``NodeSummary.pods_wanted``: first those without facts, then those whose facts lack a container that
        was just started, and those whose facts are old."""
        now_s = self._monotonic_s()
        with self._lock:
            unknown = [uid for uid, pod in self._pods.items() if pod.facts is None]
            again = [uid for uid, pod in self._pods.items() if pod.facts is not None and _is_incomplete(pod, now_s)]
        return (*unknown, *again)[:MAX_PODS]

    def hear(self, pods: Iterable[PodFacts]) -> None:
        """Take a reply of the head, perhaps one that was taken before."""
        now_s = self._monotonic_s()
        with self._lock:
            for facts in pods:
                pod = self._pods.get(facts.pod_uid)
                if pod is not None:
                    pod.facts, pod.heard_s = _newer(pod.facts, facts), now_s

    def keep(self, uids: Collection[str]) -> None:
        """Forget all pods but these."""
        with self._lock:
            self._pods = {uid: pod for uid, pod in self._pods.items() if uid in uids}


def _newer(before: PodFacts | None, facts: PodFacts) -> PodFacts:
    """A pod's attempt never falls: starts before it may be counted by earlier pods, which are deleted in time."""
    if before is None or before.job_id != facts.job_id or before.attempt <= facts.attempt:
        return facts
    return replace(facts, attempt=before.attempt)


def _is_incomplete(pod: _Pod, now_s: float) -> bool:
    known = pod.facts.containers if pod.facts is not None else {}
    missing = any(now_s - since_s <= PATIENCE_S for name, since_s in pod.containers.items() if name not in known)
    return missing or now_s - pod.heard_s >= REFRESH_S


class NamespacesOfPods:
    """Maps pods to namespaces, learnt from their ranks: the head or kubelet names a namespace, never the pod itself.
    ``whose`` may be called from any thread."""

    def __init__(self) -> None:
        self._known: Mapping[str, str] = {}

    def learn(self, ranks: Iterable[RankView]) -> bool:
        """Take the current ranks; whether that changes any pod's namespace."""
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
