"""The small HTTP server of a node: ``/metrics``, ``/healthz`` and a page that links to them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import make_wsgi_app

from tidegauge.core.views import NodeView
from tidegauge.web.access import OPEN_DOOR, Door, Refusal
from tidegauge.web.server import GuardedMixIn, GuardedRequest, ServerLimits
from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import ServiceRegistry

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
"""Silence after which a connection is closed; Prometheus' own scrape timeout is 10 s by default."""
CONNECTIONS_AT_ONCE = 16
"""A node is scraped by one or two Prometheus servers."""
LIMITS = ServerLimits(CONNECTIONS_AT_ONCE, ask_within_s=REQUEST_TIMEOUT_S, whole_s=30.0)

_INDEX = b"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tidegauge node agent</title>
<style>:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:3rem}</style>
<h1>Tidegauge node agent</h1>
<ul><li><a href="metrics">metrics</a> for Prometheus</li><li><a href="healthz">healthz</a></li></ul>
</html>
"""


class MetricsServer:
    """Serves one node's metrics. ``view`` hands out the node's present state; it is called once a scrape, in the
    server's threads, perhaps twice at once, so it returns what is ready and computes nothing.

    The text is OpenMetrics or Prometheus' own format, compressed or not, as the scraper asks; of the metrics called
    ``name[]`` in the query, if it names any.
    """

    def __init__(
        self, view: Callable[[], NodeView], *, host: str = "127.0.0.1", port: int = 0, door: Door = OPEN_DOOR
    ) -> None:
        registry = ServiceRegistry()
        registry.register(NodeCollector(view))
        self._app = _guarded(_routes(make_wsgi_app(registry)), door)
        self._door = door
        self._wanted = (host, port)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds the port and begins to serve. Raises ``OSError`` if the port is taken or the host is not ours."""
        assert self._server is None, "a MetricsServer is started once"
        host, port = self._wanted
        self._server = _Server(host, port, self._app, self._door)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.5}, name="tidegauge-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is served: the one that was found free if 0 was asked for."""
        assert self._server is not None, "start() first"
        return int(self._server.server_address[1])

    @property
    def address(self) -> str:
        """``host:port`` as bound, ``https://host:port`` with TLS; ``service_discovery.advertised_address`` makes one
        that others can reach."""
        host = self._wanted[0]
        address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        return address if self._door.scheme == "http" else f"{self._door.scheme}://{address}"

    def stop(self) -> None:
        """Ends serving and frees the port; a scrape that is under way may still finish. Does nothing twice."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()


def _guarded(app: WSGIApplication, door: Door) -> WSGIApplication:
    """All but ``/healthz``, which says nothing of anybody, for those who may read metrics."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
            ours = {name.lower() for name, _ in headers}
            more = [(name, value) for name, value in door.headers if name.lower() not in ours]
            return start_response(status, headers + more, exc_info)

        if environ.get("PATH_INFO") == "/healthz":
            return app(environ, start)
        viewer = door.admit(environ.get("HTTP_AUTHORIZATION"), environ.get("REMOTE_ADDR", ""))
        if isinstance(viewer, Refusal):
            return _refuse(start, viewer)
        if not viewer.reads_metrics:
            text = f"{viewer.name} may not read this: an admin lists who may in metrics_readers"
            return _refuse(start, Refusal(403, text))
        return app(environ, start)

    return guarded


def _refuse(start: StartResponse, refusal: Refusal) -> Iterable[bytes]:
    body = f"{refusal.text}\n".encode(errors="replace")
    status = f"{refusal.status} {HTTPStatus(refusal.status).phrase}"
    start(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *refusal.headers])
    return [body]


def _routes(metrics: WSGIApplication) -> WSGIApplication:
    pages = {"/": ("text/html; charset=utf-8", _INDEX), "/healthz": ("text/plain; charset=utf-8", b"ok\n")}

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "/")
        if path == "/metrics":
            return metrics(environ, start_response)
        content_type, body = pages.get(path, ("text/plain; charset=utf-8", b"not here: try /metrics or /healthz\n"))
        status = "200 OK" if path in pages else "404 Not Found"
        start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return app


class _Handler(GuardedRequest, WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """A line per scrape would drown the agent's log."""
        log.debug("%s: %s", self.address_string(), format % args)


class _Server(GuardedMixIn, WSGIServer):
    request_queue_size = 32

    def __init__(self, host: str, port: int, app: WSGIApplication, door: Door) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self.guard(LIMITS, door)
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Without the reverse name look-up of ``HTTPServer``, which can hang for long where DNS is broken."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()
