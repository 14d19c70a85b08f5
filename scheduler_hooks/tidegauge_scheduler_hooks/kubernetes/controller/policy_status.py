"""Says in the status of each ``MemoryPolicy`` what is in force in its namespace."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.owners import condition, timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, ObjectStore, Resource, Watches
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_status
from tidegauge_scheduler_hooks.kubernetes.team_policies import (
    MEMORY_POLICIES,
    acceptance,
    in_force,
    policies_by_namespace,
    read_policy,
)


class PolicyStatuses:
    """Tells ``on_key`` of namespaces with a policy whose status is not, or no longer, what is in force there."""

    def __init__(
        self,
        api: KubeApi,
        watches: Watches,
        *,
        on_key: Callable[[WorkKey], None],
        counts: StepCounts,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._api = api
        self._on_key = on_key
        self._counts = counts
        self._now_s = now_s
        self._store = watches.store(MEMORY_POLICIES, on_change=self._changed)
        self.stores: dict[Resource, ObjectStore] = {MEMORY_POLICIES: self._store}

    def tell_all(self) -> None:
        for namespace, policies in policies_by_namespace(self._store.all()).items():
            if _unsaid(policies):
                self._on_key(WorkKey(MEMORY_POLICIES.kind, namespace, ""))

    @staticmethod
    def covers(key: WorkKey) -> bool:
        return key.kind == MEMORY_POLICIES.kind

    def reconcile(self, key: WorkKey) -> float | None:
        """As ``Reconciler.reconcile``."""
        policies = policies_by_namespace(self._store.all())
        for policy, accepted, message in _unsaid(policies.get(key.namespace, ())):
            with self._counts.counting("policy_status"):
                self._write(policy, accepted, message)
        return None

    def _changed(self, obj: Object, deleted: bool) -> None:
        """Called in a watch's thread."""
        if deleted or not _is_of_generation(obj):
            self._on_key(WorkKey(MEMORY_POLICIES.kind, obj["metadata"]["namespace"], ""))

    def _write(self, policy: Object, accepted: bool, message: str) -> None:
        metadata, before = policy["metadata"], condition(policy, "Accepted")
        since = timestamp(self._now_s())
        if before is not None and before.get("status") == str(accepted):
            since = before["lastTransitionTime"]
        said: dict[str, Any] = {
            "type": "Accepted",
            "status": str(accepted),
            "reason": "InForce" if accepted else "PartsRefused",
            "message": message,
            "observedGeneration": metadata.get("generation", 0),
            "lastTransitionTime": since,
        }
        apply_status(self._api, MEMORY_POLICIES, metadata, {"conditions": [said]})


def _unsaid(policies: Sequence[Object]) -> Sequence[tuple[Object, bool, str]]:
    """Those of one namespace's policies whose status says something else, with what it is to say."""
    read = [read_policy(policy) for policy in policies]
    together = in_force([one.word for one in read])
    to_say = [(policy, *acceptance(one, together)) for policy, one in zip(policies, read, strict=True)]
    return [one for one in to_say if not _is_of_generation(one[0]) or _condition(one[0]).get("message") != one[2]]


def _is_of_generation(policy: Object) -> bool:
    return bool(_condition(policy).get("observedGeneration") == policy["metadata"].get("generation", 0))


def _condition(policy: Object) -> Mapping[str, Any]:
    return condition(policy, "Accepted") or {}
