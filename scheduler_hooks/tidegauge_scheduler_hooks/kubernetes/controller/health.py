"""``/healthz``, ``/readyz`` and ``/metrics`` for the kubelet and Prometheus: plain HTTP, nothing secret, read only."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, NamedTuple

from tidegauge_scheduler_hooks.kubernetes.connections import BoundedMixIn, Connections

log = logging.getLogger(__name__)

SILENCE_S = 5.0
"""After which a connection is closed; a kubelet's probe gives up after 1 s by default."""
CONNECTIONS_AT_ONCE = 16
PATIENCE_S = 0.05
"""While there are so many, with one that has not said which page it wants. Kubelets say it at once."""


class HealthPage(NamedTuple):
    """What is answered; ``good`` is what a probe looks at."""

    text: str
    good: bool = True
    content_type: str = "text/plain; charset=utf-8"


class HealthServer:
    """``pages`` by path; each is made anew for every request, in the server's threads, so it must not block."""

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], HealthPage]]) -> None:
        """Binds the port. Raises ``OSError`` if it is taken or the host is not ours."""
        self._server = _Server(host, port, pages)
        self._thread = threading.Thread(target=self._server.serve_forever, name="tidegauge-health", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(BoundedMixIn, HTTPServer):
    look_s = 1.0

    def __init__(self, host: str, port: int, pages: Mapping[str, Callable[[], HealthPage]]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.pages = pages
        self.connections = Connections(CONNECTIONS_AT_ONCE, patience_s=PATIENCE_S)
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the reverse look-up of ``HTTPServer``, which can hang where DNS is broken."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's signature)
        """Scrapers hang up; that is theirs to report."""
        log.debug("a connection from %s failed: %s", client_address, sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENCE_S
    server: _Server

    def do_GET(self) -> None:
        make = self.server.pages.get(self.path.partition("?")[0])
        if make is None:
            known = ", ".join(self.server.pages)
            self._answer(HTTPStatus.NOT_FOUND, HealthPage(f"not found: try {known}\n"))
            return
        page = make()
        self._answer(HTTPStatus.OK if page.good else HTTPStatus.SERVICE_UNAVAILABLE, page)

    def _answer(self, status: HTTPStatus, page: HealthPage) -> None:
        body = page.text.encode(errors="replace")
        self.send_response(status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """A line per probe would drown the log."""
        log.debug("%s: %s", self.address_string(), format % args)
