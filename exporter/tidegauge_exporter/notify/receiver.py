"""Where Alertmanager's webhook arrives: ``POST /alerts``, and ``GET /healthz``. Standard library, loopback by default.

200: taken, for good. 400, 413, 415: nonsense, which Alertmanager gives up. 403: Slack refuses, and a person has to do
something; Alertmanager tries again at the group's next turn. 503: it should try again at once.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any

from tidegauge.web.access import OPEN_DOOR, Door
from tidegauge.web.server import GuardedMixIn, GuardedRequest, ServerLimits
from tidegauge_exporter.messages.values import Alert, AlertGroup
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError

# Alertmanager's webhook, version "4", read by hand (https://prometheus.io/docs/alerting/latest/configuration/).
# Unknown fields are left aside, because later versions add some; what we use must be what it should be.

VERSION = "4"
MAX_ADDRESS_CHARS = 2_000


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
    is_link = isinstance(value, str) and value.startswith(("http://", "https://")) and len(value) <= MAX_ADDRESS_CHARS
    return str(value) if is_link else ""


log = logging.getLogger(__name__)

CONNECTIONS_AT_ONCE = 32
"""Alertmanager sends all groups at once, many on a bad night."""
SILENCE_S = 10.0
CONNECTION_LASTS_S = 30.0
"""As a whole, however steadily bytes drip."""
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=SILENCE_S, whole_s=CONNECTION_LASTS_S)
MAX_BODY_BYTES = 1024 * 1024
JSON_TYPE = "application/json"


class Receiver:
    """Hands each notification to ``take_group``, in threads of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        take_group: Callable[[AlertGroup], None],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        door: Door = OPEN_DOOR,
    ) -> None:
        """``token``: what a notification must show (``Authorization: Bearer``); ``None``: nothing. Of ``door`` only TLS
        and headers count: the webhook has this password of its own."""
        self._take_group = take_group
        self._door = door
        self._token = token
        self._wanted = (host, port)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind and serve. Raises ``OSError`` if the port is taken or the host is not one of this machine."""
        assert self._server is None, "a Receiver is started once"
        self._server = _Server(self._wanted, _handler(self._take_group, self._token), self._door)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="tidegauge-alerts", daemon=True
        )
        self._thread.start()

    @property
    def listens(self) -> bool:
        """Between ``start`` and ``stop``."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port as bound."""
        assert self._server is not None, "start() first"
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """A request that is under way may still finish. Does nothing twice."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()


class _Server(GuardedMixIn, TCPServer):
    request_queue_size = 32
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], door: Door) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.guard(LIMITS, door)
        super().__init__(address, handler)


def _handler(take_group: Callable[[AlertGroup], None], token: str | None) -> type[BaseHTTPRequestHandler]:
    expected = None if token is None else f"Bearer {token}".encode()

    class Handler(GuardedRequest, BaseHTTPRequestHandler):
        timeout = SILENCE_S
        server_version = "tidegauge"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path == "/healthz":
                self._send(200, {"ok": True})
            else:
                self._send(404, {"error": "no such page", "pages": ["/alerts (POST)", "/healthz"]})

        def do_POST(self) -> None:
            if self.path != "/alerts":
                self._send(404, {"error": "no such page: Alertmanager's webhook belongs to /alerts"})
                return
            shown = self.headers.get("Authorization", "").encode(errors="replace")
            if expected is not None and not hmac.compare_digest(shown, expected):
                self._send(401, {"error": "the webhook's http_config wants authorization.credentials_file"})
                return
            # A page in somebody's browser can send a form or plain text to loopback, but not this type.
            if self.headers.get_content_type() != JSON_TYPE:
                self._send(415, {"error": f"the body must be {JSON_TYPE}"})
                return
            length = self.headers.get("Content-Length", "")
            if not (length.isascii() and length.isdigit() and len(length) < 10):
                self._send(411, {"error": "Content-Length is missing"})
            elif int(length) > MAX_BODY_BYTES:
                self._send(413, {"error": f"more than {MAX_BODY_BYTES} bytes: set max_alerts of the webhook"})
            else:
                self._take(self.rfile.read(int(length)), int(length))

        def _take(self, body: bytes, length: int) -> None:
            if len(body) < length:  # it hung up
                return
            try:
                take_group(parse_group(body))
            except NotAGroupError as error:
                log.warning("POST /alerts is not an Alertmanager notification: %s", error)
                self._send(400, {"error": str(error)})
            except RetryLaterError as error:
                self._send(503, {"error": str(error)})
            except RefusedError as error:
                log.warning("alerts cannot be posted: %s", error)
                self._send(403, {"error": str(error)})
            except Exception:
                log.exception("alerts cannot be posted")
                self._send(500, {"error": "internal error; see the notifier's log"})
            else:
                self._send(200, {"ok": True})

        def _send(self, status: int, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", JSON_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, more in self.server.door.headers:
                if name != "X-Content-Type-Options":
                    self.send_header(name, more)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            log.debug("%s %s", self.address_string(), format % args)

    return Handler
