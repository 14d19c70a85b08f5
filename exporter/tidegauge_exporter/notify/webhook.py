"""Alertmanager's webhook, version "4", read by hand (https://prometheus.io/docs/alerting/latest/configuration/).

Unknown fields are left aside, because later versions add some; what we use must be what it should be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tidegauge_exporter.messages.values import Alert, AlertGroup

VERSION = "4"
LONGEST_ADDRESS = 2_000


class NotAGroupError(ValueError):
    """The body is no notification of Alertmanager; the message says what is odd."""


def parse_group(body: bytes) -> AlertGroup:
    """Raises ``NotAGroupError``."""
    try:
        raw = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NotAGroupError(f"not JSON: {error.__class__.__name__}") from error
    group = _object(raw, "the body")
    if group.get("version") != VERSION:
        raise NotAGroupError(f'version must be "{VERSION}", not {str(group.get("version"))[:20]!r}')
    alerts = group.get("alerts")
    if not isinstance(alerts, list) or not alerts:
        raise NotAGroupError("alerts must be a list of at least one")
    left_out = group.get("truncatedAlerts", 0)
    if type(left_out) is not int or left_out < 0:
        raise NotAGroupError("truncatedAlerts must be a whole number")
    return AlertGroup(
        group_key=_text(group, "groupKey"),
        firing=_is_firing(group),
        alerts=tuple(_alert(_object(alert, "an alert")) for alert in alerts),
        group_labels=_texts(group, "groupLabels"),
        external_url=_address(group, "externalURL"),
        left_out=left_out,
    )


def _alert(raw: Mapping[str, Any]) -> Alert:
    labels = _texts(raw, "labels")
    if not labels.get("alertname"):
        raise NotAGroupError("an alert has no label alertname")
    return Alert(
        firing=_is_firing(raw),
        labels=labels,
        annotations=_texts(raw, "annotations"),
        fingerprint=_text(raw, "fingerprint"),
        starts_at=_text(raw, "startsAt"),
        generator_url=_address(raw, "generatorURL"),
    )


def _is_firing(raw: Mapping[str, Any]) -> bool:
    status = raw.get("status")
    if status not in ("firing", "resolved"):
        raise NotAGroupError(f"status must be firing or resolved, not {str(status)[:20]!r}")
    return bool(status == "firing")


def _object(raw: object, what: str) -> Mapping[str, Any]:
    if not isinstance(raw, dict):
        raise NotAGroupError(f"{what} must be an object")
    return raw


def _text(raw: Mapping[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise NotAGroupError(f"{name} must be a text")
    return value


def _texts(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    """Labels or annotations; Alertmanager writes ``null`` or leaves them out where there are none."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise NotAGroupError(f"{name} must be an object of texts")
    return value


def _address(raw: Mapping[str, Any], name: str) -> str:
    """What may become a link; anything else is left out, for a rule's author may write what he likes there."""
    value = raw.get(name)
    is_link = isinstance(value, str) and value.startswith(("http://", "https://")) and len(value) <= LONGEST_ADDRESS
    return str(value) if is_link else ""
