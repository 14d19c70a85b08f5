"""The patches that change a workload: its annotations and its suspension, never a template of its pods. Pure.

Every one is a merge patch with ``metadata.resourceVersion``: it is taken only if nobody changed the object since it was
read (``ConflictError``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tidegauge.core.jobs.kubernetes import ATTEMPT, CHANGES, ENDED, INCIDENT, RECOMMENDED, REQUEUE, RESTARTING, STOPPED
from tidegauge_scheduler_hooks.kubernetes.intents import RequeueOrder, encode, merged
from tidegauge_scheduler_hooks.kubernetes.owners import OwnerKind, Path, at
from tidegauge_scheduler_hooks.kubernetes.ports import FIELD_MANAGER, Object
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload


def annotate_patch(obj: Object, changed: Mapping[str, str | None]) -> Mapping[str, Any]:
    """Set annotations; ``None`` removes one."""
    return {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"], "annotations": dict(changed)}}


FOLDED = "ancient-changes"
"""The API server puts the oldest of more than ten managers together under this name."""


def is_others_word(obj: Object, path: Path) -> bool:
    """Whether somebody else than Tidegauge was the last to change the field at ``path``. False also where the object
    does not say (``metadata.managedFields``)."""
    fields = ("fieldsV1", *(f"f:{step}" for step in path))
    entries = obj["metadata"].get("managedFields") or ()
    managers = {entry.get("manager") for entry in entries if at(entry, fields) is not None}
    return bool(managers) and managers.isdisjoint({FIELD_MANAGER, FOLDED})


def suspend_patch(
    kind: OwnerKind, obj: Object, changed: Mapping[str, str | None], *, by_kueue: bool = False
) -> Mapping[str, Any]:
    """Suspend it and say why, at once. ``by_kueue``: only say why; its Workload is switched off instead."""
    return {**annotate_patch(obj, changed), **({} if by_kueue else _suspended(kind, True))}


def resume_patch(kind: OwnerKind, obj: Object, order: RequeueOrder, *, by_kueue: bool = False) -> Mapping[str, Any]:
    """Start it again as ``order`` says. Changes that are too long to be kept are left out, which the proof shows.

    ``by_kueue``: leaves ``suspend`` and the order itself alone; its Workload is switched on after this, and the order
    removed last (``annotate_patch``)."""
    kept = {ATTEMPT: str(order.attempt), RESTARTING: encode(order)}
    changes = merged(Workload(kind, obj).changes, order.changes)
    if changes:
        with suppress(ValueError):
            kept[CHANGES] = encode(changes)
    over = dict.fromkeys((INCIDENT, STOPPED, ENDED, RECOMMENDED, *(() if by_kueue else (REQUEUE,))))
    return {**annotate_patch(obj, {**kept, **over}), **({} if by_kueue else _suspended(kind, False))}


def _suspended(kind: OwnerKind, suspended: bool) -> Mapping[str, Any]:
    if kind.suspend is None:
        raise ValueError(f"a {kind.name} cannot be suspended")
    patch: Any = suspended
    for step in reversed(kind.suspend):
        patch = {step: patch}
    found: Mapping[str, Any] = patch
    return found
