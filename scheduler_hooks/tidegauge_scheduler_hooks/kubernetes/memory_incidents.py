"""``MemoryIncident``: an incident as an object beside its workload, for ``kubectl get`` and whoever watches it.

The object is created once, with its workload as owner, so that it goes with the workload. All that may change is its
status, which Tidegauge alone writes (server-side apply): what is decided rests on the head's database, never on this.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord, Disposition
from tidegauge.core.incidents.wording import evidence_sentences, incident_sentence, meaning, rate, time_left
from tidegauge_scheduler_hooks.kubernetes.events import cut
from tidegauge_scheduler_hooks.kubernetes.owners import timestamp
from tidegauge_scheduler_hooks.kubernetes.ports import ConflictError, KubeApi, Resource
from tidegauge_scheduler_hooks.kubernetes.statuses import apply_status
from tidegauge_scheduler_hooks.kubernetes.workloads import Workload

MEMORY_INCIDENTS = Resource("tidegauge.dev", "v1alpha1", "memoryincidents", "MemoryIncident")
MAX_RANKS = 64
MAX_TEXT_BYTES = 1024
MAX_NAME_CHARS = 253
MAX_BYTES_PER_STEP = 1 << 60


def object_name(incident: Incident) -> str:
    """``train-7-3fa1c2``: the job, the incident's number, and what tells it from another database's incident 7."""
    _, _, job = incident.key.job.job_id.partition("/")
    whole = f"{incident.key.job.job_id}\0{incident.key.job.attempt}\0{incident.opened_unix_s!r}"
    end = f"-{incident.number}-{hashlib.sha256(whole.encode(errors='replace')).hexdigest()[:6]}"
    return job[: MAX_NAME_CHARS - len(end)].rstrip("-.") + end


def incident_object(incident: Incident, workload: Workload) -> dict[str, Any]:
    """The object without its status."""
    kind, metadata = workload.kind.resource, workload.obj["metadata"]
    reference = {"apiVersion": kind.api_version, "kind": kind.kind, "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": MEMORY_INCIDENTS.api_version,
        "kind": MEMORY_INCIDENTS.kind,
        "metadata": {
            "name": object_name(incident),
            "namespace": metadata["namespace"],
            "ownerReferences": [reference],
        },
        "spec": {"number": incident.number, "workload": reference},
    }


def incident_status(incident: Incident, records: Sequence[DecisionRecord]) -> dict[str, Any]:
    """The status. ``records``: its decisions, oldest first."""
    worst = incident.findings[0] if incident.findings else None
    left = time_left(incident.seconds_to_oom) if incident.is_open else None
    evidence = next(iter(evidence_sentences(incident)), None)
    bytes_per_step = None if incident.bytes_per_step is None else incident.bytes_per_step.likely
    status = {
        "state": incident.state.value.capitalize(),
        "severity": incident.severity.value,
        "cause": incident.key.cause.value,
        "attempt": incident.key.job.attempt,
        "worldSize": incident.world_size,
        "rank": None if worst is None else worst.rank,
        "ranks": list(incident.ranks[:MAX_RANKS]),
        "ranksConcerned": len(incident.findings) + incident.ranks_left_out,
        "node": None if worst is None else worst.hostname,
        "pod": None if worst is None or worst.pod is None else worst.pod.partition("/")[2],
        "onsetStep": incident.onset_step,
        "perStep": rate(incident.bytes_per_step),
        "bytesPerStep": _whole(bytes_per_step),
        "outOfMemoryIn": left,
        "message": _text(incident_sentence(incident)),
        "advice": _text(evidence or meaning(incident)),
        "lastAction": _last_action(records),
        "openedTime": _time(incident.opened_unix_s),
        "updatedTime": _time(incident.updated_unix_s),
        "closedTime": _time(incident.closed_unix_s),
        "closure": None if incident.closure is None else incident.closure.value,
        "conditions": [_open_condition(incident)],
    }
    return {key: value for key, value in status.items() if value is not None}


def write_incident(
    api: KubeApi, incident: Incident, records: Sequence[DecisionRecord], workload: Workload | None, namespace: str
) -> None:
    """Create the object if it is not there (``workload`` is ``None``: it must be), and write its status. Raises
    ``SchedulerError``; ``ObjectNotFoundError`` also without the definition."""
    if workload is not None:
        with suppress(ConflictError):  # it is there
            api.create(MEMORY_INCIDENTS, namespace, incident_object(incident, workload))
    metadata = {"name": object_name(incident), "namespace": namespace}
    apply_status(api, MEMORY_INCIDENTS, metadata, incident_status(incident, records))


def _last_action(records: Sequence[DecisionRecord]) -> Mapping[str, Any] | None:
    """What was decided last, and what came of it."""
    if not records:
        return None
    record = records[-1]
    decision = record.decision
    if decision.disposition is not Disposition.DO:
        result = decision.disposition.value
    else:
        result = record.status.value if record.outcome is None else record.outcome.value
    return {
        "action": decision.action.value,
        "result": result,
        "reason": _text(record.detail or decision.reason),
        "time": _time(decision.decided_s if record.finished_s is None else record.finished_s),
        "summary": f"{decision.action.value} ({result})",
    }


def _open_condition(incident: Incident) -> dict[str, Any]:
    since_s = incident.opened_unix_s if incident.closed_unix_s is None else incident.closed_unix_s
    reason = incident.key.cause.value if incident.closure is None else incident.closure.value
    return {
        "type": "Open",
        "status": str(incident.is_open),
        "reason": "".join(word.capitalize() for word in reason.split("_")),
        "message": _text(incident_sentence(incident)),
        "lastTransitionTime": _time(since_s),
    }


def _whole(value: float | None) -> int | None:
    """``None`` for what no field of 64 bits takes."""
    return round(value) if value is not None and abs(value) <= MAX_BYTES_PER_STEP else None


def _text(text: str) -> str:
    return cut(text, MAX_TEXT_BYTES)


def _time(unix_s: float | None) -> str | None:
    return None if unix_s is None else timestamp(unix_s)
