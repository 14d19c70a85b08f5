"""``LEAK_CONDITION`` on pods: what a ``podFailurePolicy`` with ``onPodConditions`` matches. The kubelet leaves those
conditions alone that are not its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tidegauge.core.jobs.kubernetes import LEAK_CONDITION
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, ConflictError, KubeApi, Object, ObjectNotFoundError, Patch

REASON_ON, REASON_OFF = "GpuMemoryLeaks", "IncidentOver"


def mark_pods(
    api: KubeApi,
    pods: Iterable[Object],
    *,
    message: str | None,
    may_act: Callable[[], bool],
    now_s: Callable[[], float],
) -> int:
    """Put the condition on ``pods``, or say on them that it is over (``message=None``); returns on how many. Pods that
    went meanwhile are left out. Raises ``TemporaryError``, ``PermanentError``; then some may have it."""
    changed = 0
    for pod in pods:
        if not may_act():
            break
        metadata = pod["metadata"]
        try:
            api.patch(
                PODS, metadata["namespace"], metadata["name"], condition_patch(pod, message, now_s=now_s()),
                how=Patch.STRATEGIC, subresource="status",
            )  # fmt: skip
        except (ObjectNotFoundError, ConflictError):
            continue
        changed += 1
    return changed


def condition_patch(pod: Object, message: str | None, *, now_s: float) -> dict[str, Any]:
    """A strategic merge patch of the status: conditions are merged by their type, so those of others stay. With the
    pod's uid, as another pod may have its name by now (``ConflictError``)."""
    condition = {
        "type": LEAK_CONDITION,
        "status": "False" if message is None else "True",
        "reason": REASON_OFF if message is None else REASON_ON,
        "message": "" if message is None else message,
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s)),
    }
    return {"metadata": {"uid": pod["metadata"]["uid"]}, "status": {"conditions": [condition]}}
