"""Says in the status of each ``MemoryPolicy`` what of it is in force."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegauge_scheduler_hooks.kubernetes.controller.monitoring import StepCounts
from tidegauge_scheduler_hooks.kubernetes.controller.work_queue import WorkKey
from tidegauge_scheduler_hooks.kubernetes.owners import condition, timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import KubeApi, Object, ObjectStore, Resource, Watches
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_status
from tidegauge_scheduler_hooks.kubernetes.team_policies import MEMORY_POLICIES, acceptance, read_policy


class PolicyStatuses:
    """Tells ``on_key`` of policies without a status, or with that of an earlier generation."""

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
        for obj in self._store.all():
            self._changed(obj, False)

    @staticmethod
    def covers(key: WorkKey) -> bool:
        return key.kind == MEMORY_POLICIES.kind

    def reconcile(self, key: WorkKey) -> float | None:
        """As ``Reconciler.reconcile``."""
        found = self._store.get(key.namespace, key.name)
        if found is not None and not _is_said(found):
            with self._counts.counting("policy_status"):
                self._write(found)
        return None

    def _changed(self, obj: Object, deleted: bool) -> None:
        """Called in a watch's thread."""
        if not deleted and not _is_said(obj):
            self._on_key(WorkKey(MEMORY_POLICIES.kind, obj["metadata"]["namespace"], obj["metadata"]["name"]))

    def _write(self, policy: Object) -> None:
        accepted, message = acceptance(read_policy(policy))
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


def _is_said(policy: Object) -> bool:
    found = condition(policy, "Accepted") or {}
    return bool(found.get("observedGeneration") == policy["metadata"].get("generation", 0))
