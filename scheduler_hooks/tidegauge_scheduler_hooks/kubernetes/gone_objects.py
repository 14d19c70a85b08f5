"""Objects that were deleted lately, as they were last seen: a job is asked about when its pods may be gone."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tidegauge.core.jobs.kubernetes import PREFIX
from tidegauge_scheduler_hooks.kubernetes.owners import at
from tidegauge_scheduler_hooks.kubernetes.ports import PODS, Object
from tidegauge_scheduler_hooks.kubernetes.replicas import REPLICA_LABELS
from tidegauge_scheduler_hooks.kubernetes.run_ends import DISRUPTED
from tidegauge_scheduler_hooks.kubernetes.workloads import (
    QUEUE_LABEL,
    RESTART_LABEL,
    VOLCANO_VERSION,
    annotations_of,
    labels_of,
)

KEPT_GONE_S = 300.0
"""Schedulers are asked for 77 s how a job ended (``job_ends``)."""
MAX_GONE = 20_000
"""The most that are remembered, the latest. What is kept of a pod takes about 4 KiB."""
_KEPT_OF_METADATA = (
    "name", "namespace", "uid", "ownerReferences", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds",
)  # fmt: skip
_KEPT_LABELS = (QUEUE_LABEL, RESTART_LABEL, *REPLICA_LABELS)
_KEPT_ANNOTATIONS = (PREFIX, VOLCANO_VERSION)
"""What their names begin with."""


class _Gone(NamedTuple):
    obj: Object
    at_s: float


class GoneObjects:
    """By uid. Not thread-safe."""

    def __init__(self, monotonic_s: Callable[[], float]) -> None:
        self._monotonic_s = monotonic_s
        self._gone: OrderedDict[str, _Gone] = OrderedDict()
        """Those first that were deleted first."""

    def __len__(self) -> int:
        return len(self._gone)

    def add(self, obj: Object) -> None:
        uid = obj["metadata"]["uid"]
        self.take_out(uid)
        now_s = self._monotonic_s()
        while self._gone:
            oldest, (_, at_s) = next(iter(self._gone.items()))
            if now_s - at_s < KEPT_GONE_S and len(self._gone) < MAX_GONE:
                break
            del self._gone[oldest]
        self._gone[uid] = _Gone(_kept(obj), now_s)

    def take_out(self, uid: str) -> None:
        """An object that is there again."""
        self._gone.pop(uid, None)

    def get(self, uid: str) -> Object | None:
        found = self._gone.get(uid)
        return None if found is None else found.obj

    def among(self, uids: Collection[str]) -> frozenset[str]:
        return frozenset(uid for uid in uids if uid in self._gone)


def _kept(obj: Object) -> Object:
    """The parts by which ``run_ends`` says how a run ended. An annotation of others may have 256 KiB."""
    metadata = {name: obj["metadata"][name] for name in _KEPT_OF_METADATA if name in obj["metadata"]}
    metadata["annotations"] = {
        name: text for name, text in annotations_of(obj).items() if name.startswith(_KEPT_ANNOTATIONS)
    }
    metadata["labels"] = {name: text for name, text in labels_of(obj).items() if name in _KEPT_LABELS}
    status = obj.get("status") or {}
    if obj.get("kind") == PODS.kind:
        status = _kept_of_pod(status)
    return {"kind": obj.get("kind"), "metadata": metadata, "spec": {}, "status": status}


def _kept_of_pod(status: Mapping[str, Any]) -> Mapping[str, Any]:
    disruptions = [one for one in status.get("conditions") or () if one.get("type") == DISRUPTED]
    ends = [at(one, ("state", "terminated")) for one in status.get("containerStatuses") or ()]
    containers = [
        {"state": {"terminated": {name: end.get(name) for name in ("exitCode", "finishedAt")}}} for end in ends if end
    ]
    return {
        "phase": status.get("phase"),
        "reason": status.get("reason"),
        "conditions": disruptions,
        "containerStatuses": containers,
    }
