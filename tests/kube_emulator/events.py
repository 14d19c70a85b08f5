"""Events are one kind with two faces: ``v1`` and ``events.k8s.io/v1``. Stored as the former."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_CORE_BY_NEW = {
    "regarding": "involvedObject",
    "note": "message",
    "reportingController": "reportingComponent",
    "deprecatedSource": "source",
    "deprecatedFirstTimestamp": "firstTimestamp",
    "deprecatedLastTimestamp": "lastTimestamp",
    "deprecatedCount": "count",
}
_NEW_BY_CORE = {core: new for new, core in _CORE_BY_NEW.items()}
_FROZEN = ("reportingInstance", "eventTime", "related", "action", "type", "reason")
_MAX_NOTE_BYTES = 1024


def to_core(event: Mapping[str, Any]) -> dict[str, Any]:
    """Of one that was written as ``events.k8s.io/v1``."""
    renamed = {_CORE_BY_NEW.get(key, key): value for key, value in event.items()}
    return {"source": {}, "involvedObject": {}, **renamed, "apiVersion": "v1"}


def to_new(event: Mapping[str, Any]) -> dict[str, Any]:
    renamed = {_NEW_BY_CORE.get(key, key): value for key, value in event.items()}
    return {**renamed, "apiVersion": "events.k8s.io/v1"}


def event_causes(event: Mapping[str, Any], *, new: bool) -> Iterator[str]:
    """Reasons against an event in its core form; ``new``: it was written as ``events.k8s.io/v1``."""
    about, namespace = (event.get("involvedObject") or {}).get("namespace", ""), event["metadata"].get("namespace")
    # Of an object elsewhere only old events complain, of one without a namespace both.
    if about != namespace and not (about and new) and not (not about and namespace in ("default", "kube-system")):
        yield f'involvedObject.namespace: Invalid value: "{about}": does not match event.namespace'
    if not new:
        return
    if not event.get("eventTime"):
        yield "eventTime: Required value"
    if event.get("type") not in ("Normal", "Warning"):
        yield f'type: Invalid value: "{event.get("type", "")}": has invalid value: {event.get("type", "")}'
    for core, told in (("reportingComponent", "reportingController"), ("reportingInstance", "reportingInstance")):
        if not event.get(core):
            yield f"{told}: Required value"
    for key in ("action", "reason"):
        if not event.get(key):
            yield f"{key}: Required value"
    if len(str(event.get("message", "")).encode()) > _MAX_NOTE_BYTES:
        yield f'message: Invalid value: "": can have at most {_MAX_NOTE_BYTES} bytes'


def event_update_causes(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    """Of an event with ``eventTime`` only the series may change."""
    if old.get("eventTime"):
        for key in (*_FROZEN, *_NEW_BY_CORE):
            if old.get(key) != new.get(key):
                yield f"{_NEW_BY_CORE.get(key, key)}: Invalid value: field is immutable"
