"""A small TLS server for the API server's questions: POST /mutate. Standard library only.

It faces the cluster's network, so whatever arrives is bounded: bytes, seconds, connections at once. It has no other
page, and nothing that arrives is logged. One question a connection: an API server that finds a kept one closed at the
moment when it asks gets no answer, and the pod no probe.
"""

from __future__ import annotations

import json
import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer
from typing import Any, Protocol

from tidegauge.web.server import hang_up
from tidegauge_scheduler_hooks.kubernetes.connections import BoundedMixIn, Connections

PATH = "/mutate"
MAX_BODY_BYTES = 3 << 20
"""The API server takes no larger request, so none of its questions is larger by much."""
CONNECTION_S = 15.0
"""From the first byte to the last, whatever is said. API servers wait for 5 s as the chart has it, 30 s at most."""
MAX_CONNECTIONS = 64
"""At once; further ones wait."""
PATIENCE_S = 2.0
"""While there are so many, with one that has not asked yet: longer than a burst of pods keeps a slow replica busy, and
shorter than API servers wait."""
_LOOK_S = 0.5

_logger = logging.getLogger(__name__)


class ServerCertificate(Protocol):
    """Where the certificate comes from. Thread-safe, never blocks for long."""

    def current(self) -> ssl.SSLContext | None:
        """What connections are to be served with from now on; ``None`` while there is no certificate yet."""


class WebhookServer:
    """Serves from ``start`` to ``close``. A certificate that was renewed counts from the next connection on."""

    def __init__(
        self, host: str, port: int, certificate: ServerCertificate, answer: Callable[[bytes], Mapping[str, Any]]
    ) -> None:
        """``port`` 0: any free one. ``answer`` is ``Injector.answer``. Raises ``OSError`` if it cannot listen."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._server = _Server((host, port), family, certificate, answer)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_LOOK_S,), name="webhook", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self, *, patience_s: float = 5.0) -> None:
        """Take no more questions, and wait so long for those under way to be answered."""
        self._server.closing = True
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()
        self._server.connections.drain(patience_s)


class _Server(BoundedMixIn, TCPServer):
    allow_reuse_address = True
    look_s = _LOOK_S

    def __init__(
        self,
        address: tuple[str, int],
        family: socket.AddressFamily,
        certificate: ServerCertificate,
        answer: Callable[[bytes], Mapping[str, Any]],
    ) -> None:
        self.address_family = family
        self.certificate = certificate
        self.answer = answer
        self.closing = False
        self.connections = Connections(MAX_CONNECTIONS, patience_s=PATIENCE_S)
        super().__init__(address, _Question)

    def goes_on_waiting(self) -> bool:
        return not self.closing

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's own thread: a handshake that does not end holds up nobody else."""
        context = self.certificate.current()
        if context is None:
            return
        with context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as connection:
            self.connections.secured(request, connection)
            # A peer that says one byte now and then is never quiet for long, so there is an end for all of it.
            end = threading.Timer(CONNECTION_S, hang_up, (connection,))
            end.daemon = True
            end.start()
            try:
                connection.do_handshake()
                _Question(connection, client_address, self)
            finally:
                end.cancel()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class calls it so
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):  # else the peer went away, did not like the certificate, or was hung up on
            _logger.error("a connection to the webhook failed: %r", error)


class _Question(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit() and len(length) <= 9):
            self._refuse(411, "Content-Length required")
        elif int(length) > MAX_BODY_BYTES:
            self._refuse(413, f"at most {MAX_BODY_BYTES} bytes")
        else:
            body = self.rfile.read(int(length))  # also of what is refused: unread, it would reset the connection
            self.server.connections.heard(self.connection)
            if self.path.partition("?")[0] != PATH:
                self._refuse(404, f"not found: only {PATH}")
            elif len(body) == int(length):
                self._answer(body)
            else:
                self.close_connection = True

    def do_GET(self) -> None:
        self._refuse(405, f"use POST to {PATH}")

    def version_string(self) -> str:
        return "tidegauge"

    def log_message(self, *_: object) -> None:
        """Nothing: what a stranger sends is no business of the log, and counters tell of the rest."""

    def _answer(self, body: bytes) -> None:
        try:
            answer = self.server.answer(body)
        except ValueError as error:
            self._refuse(400, str(error))
            return
        self._send(200, "application/json", json.dumps(answer).encode())

    def _refuse(self, status: int, why: str) -> None:
        self._send(status, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)
