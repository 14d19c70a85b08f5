"""The patches that change a workload. Pure.

Every one is a merge patch with ``metadata.resourceVersion``: it is taken only if nobody changed the object since it was
read (``ConflictError``). Lists (a JobSet's jobs) are sent whole; nothing else of them is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, ENDED, INCIDENT, REQUEUE, STOPPED
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode, merged
from tidegauge_scheduler_hooks.kubernetes.owners import TRAINJOB, OwnerKind, Path, at
from tidegauge_scheduler_hooks.kubernetes.ports import Object
from tidegauge_scheduler_hooks.kubernetes.workloads import MANAGER, Workload, runtime_patches


def annotate_patch(obj: Object, changed: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Set annotations; ``None`` removes one."""
    return {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": dict(changed)}}


def suspend_patch(
    kind: OwnerKind, obj: Object, changed: Mapping[str, str | None], *, by_kueue: bool = False
) -> Mapping[str, Any]:
    """Suspend it and say why, at once. ``by_kueue``: only say why; its Workload is switched off instead."""
    if kind.suspend is None:
        raise ValueError(f"a {kind.name} cannot be suspended")
    after: Any = copy.deepcopy(dict(obj))
    _annotate(after, changed)
    if not by_kueue:
        _set(after, kind.suspend, True)
    return _patch(obj, after)


def resume_patch(
    kind: OwnerKind, obj: Object, order: RequeueOrder, *, by_kueue: bool = False, templates: bool = True
) -> Mapping[str, Any]:
    """Start it again as ``order`` says.

    ``by_kueue``: leaves ``suspend`` and the order itself alone; its Workload is switched on after this, and the order
    removed last (``annotate_patch``). ``templates=False``: for an API server that refuses a change of the template (a
    Job's, before Kubernetes 1.36); the next pods are then as the last. Raises ``ValueError`` if the changes are too
    long to be kept."""
    if kind.suspend is None:
        raise ValueError(f"a {kind.name} cannot be suspended")
    workload = Workload(kind, obj)
    changes = merged(workload.changes, order.changes)
    kept = {ATTEMPT: str(order.attempt), **({CHANGES: encode(changes)} if changes else {})}
    after: Any = copy.deepcopy(dict(obj))
    _annotate(after, {**kept, INCIDENT: None, STOPPED: None, ENDED: None, **({} if by_kueue else {REQUEUE: None})})
    if templates and kind is TRAINJOB:
        _patch_runtime(after, kept)
    elif templates:
        for path in kind.templates(obj):
            _annotate(at(after, path), kept)
    if not by_kueue:
        _set(after, kind.suspend, False)
    return _patch(obj, after)


def _patch_runtime(trainjob: Any, kept: Mapping[str, str]) -> None:
    """Annotate the pods of a TrainJob's jobs by our entry of ``runtimePatches``: its way for other controllers. Jobs
    that its runtime does not have are refused, so only those that its status names are; variables of ``node`` are
    refused as well."""
    names = [job["name"] for job in at(trainjob, ("status", "jobsStatus")) or ()]
    if not names:
        return
    template = {"spec": {"template": {"metadata": {"annotations": dict(kept)}}}}
    jobs = [{"name": name, "template": template} for name in names]
    ours = {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}
    others = [entry for entry in runtime_patches(trainjob) if entry.get("manager") != MANAGER]
    trainjob["spec"]["runtimePatches"] = [*others, ours]


def _patch(before: Object, after: Object) -> Mapping[str, Any]:
    patch = _difference(before, after)
    patch.setdefault("metadata", {})["resourceVersion"] = before["metadata"]["resourceVersion"]
    return patch


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """As a merge patch (RFC 7386)."""
    changed: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        old = before.get(name)
        if name in before and isinstance(old, Mapping) and isinstance(value, Mapping):
            inner = _difference(old, value)
            changed.update({name: inner} if inner else {})
        elif name not in before or old != value:
            changed[name] = value
    return changed


def _annotate(obj: Any, changed: Mapping[str, str | None]) -> None:
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    kept = {**(obj["metadata"].get("annotations") or {}), **changed}
    obj["metadata"]["annotations"] = {name: value for name, value in kept.items() if value is not None}


def _set(obj: Any, path: Path, value: object) -> None:
    *above, last = path
    for step in above:
        if obj.get(step) is None:
            obj[step] = {}
        obj = obj[step]
    obj[last] = value
