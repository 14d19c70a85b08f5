"""The HTTP server for Alertmanager's webhook: ``POST /alerts``; and ``GET /metrics`` and ``/healthz``. Loopback by
default.

Answers: 200, delivered. 400, 413, 415: invalid, and Alertmanager gives up. 403: Slack refuses, and a person has to act;
Alertmanager tries again at the group's next turn. 503: it should try again at once.
"""

from __future__ import annotations

import hmac
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidegauge.core.wire import to_json
from tidegauge.http.access import OPEN_DOOR, Door, Refusal
from tidegauge.http.connections import ServerLimits
from tidegauge.http.server import JSON_TYPE, App, Handler, HttpRequest, HttpServer, Response, Routes
from tidegauge_exporter.messages.values import Alert, AlertGroup
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

# Alertmanager's webhook, version "4", read by hand (https://prometheus.io/docs/alerting/latest/configuration/).
# Unknown fields are left aside, because later versions add some; what we use must be what it should be.

VERSION = "4"
MAX_ADDRESS_CHARS = 2_000


class NotAGroupError(ValueError):
    """The body is no notification of Alertmanager, for the reason in the message."""


def parse_group(body: bytes) -> AlertGroup:
    """The notification in a body. Raises ``NotAGroupError``."""
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
    """Labels or annotations, perhaps none: Alertmanager then writes ``null`` or leaves them out."""
    value = raw.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise NotAGroupError(f"{name} must be an object of texts")
    return value


def _address(raw: Mapping[str, Any], name: str) -> str:
    """The address of a link; empty for other texts, which rules may have there."""
    value = raw.get(name)
    is_link = isinstance(value, str) and value.startswith(("http://", "https://")) and len(value) <= MAX_ADDRESS_CHARS
    return str(value) if is_link else ""


log = logging.getLogger(__name__)

CONNECTIONS_AT_ONCE = 32
"""Bound of connections: Alertmanager sends all groups at once."""
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=10.0, whole_s=30.0)
MAX_BODY_BYTES = 1024 * 1024
OK = Response(to_json({"ok": True}))


class Receiver(HttpServer):
    """The server that hands each notification to ``take_group``, in threads of its own. ``take_group=None``: there is
    no channel for alerts."""

    def __init__(
        self,
        take_group: Callable[[AlertGroup], None] | None,
        *,
        metrics: Handler | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        door: Door = OPEN_DOOR,
    ) -> None:
        """``token``: the password of callers of ``/alerts`` (``Authorization: Bearer``), to whom of ``door`` only TLS
        and headers count; ``metrics``: answers ``GET /metrics``."""
        pages = to_json({"error": "no such page", "pages": ["/alerts (POST)", "/metrics", "/healthz"]})
        routes: Routes = {
            ("POST", "/alerts"): _without_channel if take_group is None else _alerts(take_group, token),
            **({} if metrics is None else {("GET", "/metrics"): metrics}),
            ("POST", None): lambda _: Refusal(404, "no such page: Alertmanager's webhook belongs to /alerts"),
            ("GET", "/healthz"): lambda _: OK,
            ("GET", None): lambda _: Response(pages, status=404),
        }
        super().__init__(App(routes, LIMITS, "notifier"), host=host, port=port, door=door)


def _without_channel(_: HttpRequest) -> Refusal:
    return Refusal(404, "there is no channel for alerts: set slack_token_file and slack_channel (docs/slack.md)")


def _alerts(take_group: Callable[[AlertGroup], None], token: str | None) -> Handler:
    expected = None if token is None else f"Bearer {token}".encode()

    def alerts(request: HttpRequest) -> Response | Refusal:
        shown = request.headers.get("Authorization", "").encode(errors="replace")
        if expected is not None and not hmac.compare_digest(shown, expected):
            return Refusal(401, "the webhook's http_config wants authorization.credentials_file")
        # A page in somebody's browser can send a form or plain text to loopback, but not this type.
        if request.headers.get_content_type() != JSON_TYPE:
            return Refusal(415, f"the body must be {JSON_TYPE}")
        body = request.body(MAX_BODY_BYTES, "set max_alerts of the webhook")
        if isinstance(body, Refusal):
            return body
        try:
            take_group(parse_group(body))
        except NotAGroupError as error:
            log.warning("POST /alerts is not an Alertmanager notification: %s", error)
            return Refusal(400, str(error))
        except RetryLaterError as error:
            return Refusal(503, str(error))
        except RefusedError as error:
            log.warning("alerts cannot be posted: %s", error)
            return Refusal(403, str(error))
        return OK

    return alerts
