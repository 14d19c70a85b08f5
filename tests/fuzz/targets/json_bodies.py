"""JSON of others: settings of a job's next attempt, Alertmanager's webhook, answers and reports (``core.wire``)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from evidence_values import evidence
from fuzz.oracles import require
from fuzz.target import Target
from sample_views import job_view
from scheduler_values import decision, incident, record
from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.jobs import settings as job_settings
from tidegauge.core.jobs.settings import JobSettings
from tidegauge.core.views import JobView
from tidegauge.core.wire import from_wire, to_json, to_wire
from tidegauge_exporter.notify.receiver import NotAGroupError, parse_group

_ENVIRON = {"PATH": "/bin", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TIDEGAUGE_MEMORY_FRACTION": "0.9"}
_FORMS: tuple[type, ...] = (Incident, DecisionRecord, JobView, Evidence)


def settings(data: bytes) -> None:
    """Only ``ValueError``; no other variable than ours and the allocator's is ever set; the file comes back."""
    try:
        found = job_settings.decode(data)
    except ValueError:
        return
    require(job_settings.decode(_limited(found)) == found, "it does not come back as it was")
    changes = job_settings.changes(found, _ENVIRON)
    require(all(job_settings.may_set(name) for name in changes), f"it sets {sorted(changes)}")
    require(all("\0" not in value for value in changes.values()), "a value that no environment can hold")
    merged = job_settings.changes(found, {**_ENVIRON, **changes})
    require(
        all(merged.get(name, value) == value for name, value in changes.items()), "the second time it says otherwise"
    )


def _limited(found: JobSettings) -> bytes:
    """``decode`` refuses long files: escapes may make the same settings longer than they came."""
    content = job_settings.encode(found)
    return (
        content
        if len(content) <= job_settings.MAX_FILE_BYTES
        else json.dumps(json.loads(content), ensure_ascii=False).encode()
    )


def webhook(data: bytes) -> None:
    try:
        group = parse_group(data)
    except NotAGroupError as error:
        require(len(str(error)) < 300, "a refusal as long as what it refuses")
        return
    require(bool(group.alerts) and group.left_out >= 0, "a group without alerts")
    for address in (group.external_url, *(alert.generator_url for alert in group.alerts)):
        require(not address or address.startswith(("http://", "https://")), f"a link to {address[:40]!r}")


def wire(data: bytes) -> None:
    """Values that a neighbouring version, or a database, wrote: ``ValueError``, or a value that comes back."""
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        return
    for form in _FORMS:
        try:
            value: Any = from_wire(form, raw)
        except (ValueError, RecursionError):
            continue
        again: Any = to_wire(value)
        require(to_wire(from_wire(form, again)) == again, f"a {form.__name__} does not come back as it was")


def _settings() -> Iterable[bytes]:
    yield job_settings.encode(JobSettings("4711", 1001))
    yield job_settings.encode(
        JobSettings("12_3", 0, 2, {"TIDEGAUGE_MEMORY_FRACTION": "0.85"}, {"expandable_segments": "True"}, "2.13.0")
    )


def _groups() -> Iterable[bytes]:
    alert = {
        "status": "firing", "labels": {"alertname": "TidegaugeIncident", "incident": "12"}, "annotations": None,
        "startsAt": "2026-11-21T06:12:55Z", "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "c4b0ad62d63f5c64",
        "generatorURL": "https://head.example/report?incident=12",
    }  # fmt: skip
    group = {
        "version": "4", "status": "firing", "alerts": [alert], "groupLabels": {"alertname": "x"}, "groupKey": "{}:{}",
        "externalURL": "http://head:9093", "truncatedAlerts": 0, "receiver": "tidegauge",
    }  # fmt: skip
    yield json.dumps(group).encode()
    yield json.dumps({**group, "alerts": [alert, {**alert, "status": "resolved"}]}).encode()


def _values() -> Iterable[bytes]:
    for value in (incident(), record(decision()), job_view(), evidence()):
        yield to_json(value)


_WORDS = (
    b"null", b"NaN", b"-1", b"1e999", b"9" * 400, b"\\u0000", b"\\ud800", b"true", b"[" * 600, b"{}", b'""', b"0.5",
    b'"TIDEGAUGE_MEMORY_FRACTION":"0.5"', b'"LD_PRELOAD":"x"', b'"environ":{', b'"alloc_conf":{',
    b'"PYTORCH_ALLOC_CONF":', b'"version":"4"', b'"status":"resolved"', b"javascript:alert(1)", b'"truncatedAlerts":',
    b'"findings":[', b'"cause":',
)  # fmt: skip
JOB_SETTINGS = Target(settings, lambda: list(_settings()), words=_WORDS, most_bytes=20_000)
WEBHOOK = Target(webhook, lambda: list(_groups()), words=_WORDS)
WIRE = Target(wire, lambda: list(_values()), words=_WORDS)
