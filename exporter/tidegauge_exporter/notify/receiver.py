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
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer

from tidegauge.web.access import OPEN_DOOR, Door
from tidegauge.web.server import GuardedMixIn, GuardedRequest, ServerLimits
from tidegauge_exporter.messages.values import AlertGroup
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.webhook import NotAGroupError, parse_group

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
                log.warning("what came to /alerts is no notification of Alertmanager: %s", error)
                self._send(400, {"error": str(error)})
            except RetryLaterError as error:
                self._send(503, {"error": str(error)})
            except RefusedError as error:
                log.warning("alerts cannot be told: %s", error)
                self._send(403, {"error": str(error)})
            except Exception:
                log.exception("alerts cannot be told")
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
