"""Deleting: preconditions, grace, finalizers, propagation; evictions and the budgets that refuse them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube_emulator.clock import now
from kube_emulator.errors import STALE, ApiError, conflict, not_found, precondition_failed
from kube_emulator.resources import BUDGETS, JOBS, PODS, ResourceType
from kube_emulator.selectors import matches_labels
from kube_emulator.store import Key, Object, StaleError, Store

ORPHAN, FOREGROUND = "orphan", "foregroundDeletion"
_POLICIES: Mapping[str, str | None] = {"Orphan": ORPHAN, "Foreground": FOREGROUND, "Background": None}


def delete(
    store: Store, resource: ResourceType, key: Key, options: Mapping[str, Any], *, dry_run: bool = False
) -> tuple[Object, bool]:
    """The object as it is now, and whether it is gone. Raises 404, and 409 for a precondition."""
    while True:
        old = store.get(key)
        if old is None:
            raise not_found(resource, key.name)
        _check_preconditions(resource, old, options.get("preconditions") or {})
        marked = _marked(resource, old, options)
        if dry_run:
            return marked, may_go(resource, marked)
        try:
            if may_go(resource, marked):
                return store.delete(key, old), True
            return store.update(key, old, marked), False
        except StaleError:
            continue  # somebody changed it meanwhile: look again, as the API server does


def _check_preconditions(resource: ResourceType, old: Object, wanted: Mapping[str, Any]) -> None:
    metadata = old["metadata"]
    for field, told in (("uid", "UID"), ("resourceVersion", "ResourceVersion")):
        if wanted.get(field) and wanted[field] != metadata[field]:
            raise precondition_failed(resource, metadata["name"], told, wanted[field], metadata[field])


def _marked(resource: ResourceType, old: Object, options: Mapping[str, Any]) -> Object:
    """The object on its way out: deletion time, grace, finalizers of the propagation policy."""
    metadata = {**old["metadata"]}
    grace_s = _grace_s(resource, old, options.get("gracePeriodSeconds"))
    earlier_s = metadata.get("deletionGracePeriodSeconds")
    if "deletionTimestamp" not in metadata or (earlier_s is not None and grace_s < earlier_s):
        metadata["deletionTimestamp"] = now(grace_s)
        metadata["deletionGracePeriodSeconds"] = grace_s
    metadata["finalizers"] = _finalizers(resource, metadata.get("finalizers") or [], options.get("propagationPolicy"))
    if not metadata["finalizers"]:
        del metadata["finalizers"]
    marked = {**old, "metadata": metadata}
    if resource.kind == "Namespace":
        marked["status"] = {**(old.get("status") or {}), "phase": "Terminating"}
    return marked


def _grace_s(resource: ResourceType, old: Object, wanted: int | None) -> int:
    """Only pods that a node runs are given time to stop."""
    if resource.kind != "Pod":
        return 0
    spec = old["spec"]
    if not spec.get("nodeName") or (old.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    return int(spec["terminationGracePeriodSeconds"] if wanted is None else wanted)


def _finalizers(resource: ResourceType, present: list[str], policy: str | None) -> list[str]:
    kept = [each for each in present if each not in (ORPHAN, FOREGROUND)]
    if policy is None:
        ours = [each for each in present if each in (ORPHAN, FOREGROUND)]
        # batch/v1 keeps what the first version did: a deleted Job leaves its pods behind
        return [*kept, *(ours or ([ORPHAN] if resource == JOBS else []))]
    if policy not in _POLICIES:
        words = (
            f'propagationPolicy: Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan"'
        )
        raise ApiError(422, "Invalid", f'DeleteOptions.meta.k8s.io "" is invalid: {words}')
    finalizer = _POLICIES[policy]
    return [*kept, finalizer] if finalizer else kept


def may_go(resource: ResourceType, value: Object) -> bool:
    """Nothing holds an object that is being deleted: no finalizer, no grace left, no namespace's contents."""
    metadata = value["metadata"]
    held = metadata.get("finalizers") or metadata.get("deletionGracePeriodSeconds")
    return "deletionTimestamp" in metadata and not held and resource.kind != "Namespace"


def evict(store: Store, key: Key, body: Mapping[str, Any], *, dry_run: bool) -> None:
    """Raises 404, and 429 where a PodDisruptionBudget has no room."""
    pod = store.get(key)
    if pod is None:
        raise not_found(PODS, key.name)
    phase = (pod.get("status") or {}).get("phase")
    if phase == "Running" and "deletionTimestamp" not in pod["metadata"]:
        _check_budgets(store, pod)
    if dry_run:
        return
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": now(),
    }
    status = pod.get("status") or {}
    others = [each for each in status.get("conditions") or [] if each["type"] != condition["type"]]
    try:
        store.update(key, pod, {**pod, "status": {**status, "conditions": [*others, condition]}})
    except StaleError:
        raise conflict(PODS, key.name, STALE) from None
    delete(store, PODS, key, body.get("deleteOptions") or {})


def _check_budgets(store: Store, pod: Object) -> None:
    metadata = pod["metadata"]
    for budget in store.of_kind(BUDGETS.group, BUDGETS.plural, metadata["namespace"]):
        if matches_labels(budget["spec"].get("selector"), metadata.get("labels") or {}):
            status = budget_status(store, budget)
            if status["disruptionsAllowed"] <= 0:
                cause = (
                    f"The disruption budget {budget['metadata']['name']} needs {status['desiredHealthy']} healthy pods "
                    f"and has {status['currentHealthy']} currently"
                )
                details = {"causes": [{"reason": "DisruptionBudget", "message": cause}]}
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                raise ApiError(429, "TooManyRequests", message, details=details)


def budget_status(store: Store, budget: Object) -> dict[str, Any]:
    """What the disruption controller writes."""
    spec, metadata = budget["spec"], budget["metadata"]
    pods = [
        pod
        for pod in store.of_kind("", "pods", metadata["namespace"])
        if matches_labels(spec.get("selector"), pod["metadata"].get("labels") or {})
        and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    healthy = sum(_ready(pod) for pod in pods)
    if "minAvailable" in spec:
        desired = _share(spec["minAvailable"], len(pods))
    else:
        desired = max(0, len(pods) - _share(spec.get("maxUnavailable", 1), len(pods)))
    return {
        "observedGeneration": metadata.get("generation", 1),
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": len(pods),
        "disruptionsAllowed": max(0, healthy - desired) if pods else 0,
    }


def _ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _share(value: int | str, total: int) -> int:
    """A number, or a percentage (rounded up)."""
    return value if isinstance(value, int) else -(-int(value.rstrip("%")) * total // 100)
