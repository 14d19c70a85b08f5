"""Events about a workload, which ``kubectl describe`` shows its owner (``events.k8s.io/v1`` in the API reference)."""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import suppress

from tidegauge_scheduler_hooks.kubernetes.owners import OwnerReference, unread_object
from tidegauge_scheduler_hooks.kubernetes.ports import EVENTS, ConflictError, KubeApi, Object, Resource

CONTROLLER = "tidegauge.dev/tidegauge"
MAX_NOTE_BYTES = 1000
"""The API server takes 1024."""

INCIDENT_EVENT = "GpuMemoryIncident"
REMARK_EVENT = "GpuMemoryRemark"
REQUEUED_EVENT = "GpuMemoryRequeue"
RESTARTED_EVENT = "GpuMemoryRestarted"
UNPROVEN_EVENT = "GpuMemorySettingsMissing"
HELD_EVENT = "GpuMemoryHold"
CANCELLED_EVENT = "GpuMemoryCancel"
ENDED_EVENT = "GpuMemoryOfEndedJob"
UNWATCHED_EVENT = "GpuMemoryNotWatched"


def record_event(
    api: KubeApi, regarding: tuple[Resource, Object], *, reason: str, note: str, decision_id: str, warning: bool = True
) -> None:
    """Leave an Event, once per decision. Raises ``TemporaryError``, ``PermanentError``."""
    resource, obj = regarding
    metadata = obj["metadata"]
    # A name made from decision, reason and object cannot be there twice.
    digest = hashlib.sha256("\0".join((decision_id, reason, metadata["uid"])).encode()).hexdigest()[:24]
    body = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": f"tidegauge.{digest}", "namespace": metadata["namespace"]},
        "eventTime": micro_time(time.time()),
        "reportingController": CONTROLLER,
        "reportingInstance": f"{CONTROLLER}-{socket.gethostname()}"[:128],
        "action": reason,
        "reason": reason,
        "type": "Warning" if warning else "Normal",
        "note": cut(note, MAX_NOTE_BYTES),
        "regarding": {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
    }
    with suppress(ConflictError):  # it is there
        api.create(EVENTS, metadata["namespace"], body)


def regarding_owner(reference: OwnerReference, namespace: str) -> tuple[Resource, Object]:
    """An owner that was not read, for ``record_event``."""
    resource = Resource(reference.group, reference.version, "", reference.kind)
    return resource, unread_object(namespace, reference.name, reference.uid)


def micro_time(unix_s: float) -> str:
    """A ``MicroTime``, always with six digits: the API server refuses one without a fraction."""
    whole, micro = divmod(round(unix_s * 1e6), 1_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{micro:06d}Z"


def cut(text: str, max_bytes: int) -> str:
    """At most ``max_bytes`` in UTF-8, with a sign that something is missing."""
    raw = text.encode(errors="replace")
    return raw.decode() if len(raw) <= max_bytes else raw[: max_bytes - 3].decode(errors="ignore") + "..."
