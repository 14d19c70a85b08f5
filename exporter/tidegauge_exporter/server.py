"""The small HTTP server of a node: ``/metrics``, ``/healthz`` and a page that links to them."""

from __future__ import annotations

import contextlib
import gzip
import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import TCPServer, ThreadingMixIn
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from tidegauge.core.views import NodeView
from tidegauge_exporter.collector import NodeCollector
from tidegauge_exporter.negotiation import accepts_gzip, choose_format

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

log = logging.getLogger(__name__)

REQUEST_TIMEOUT_S = 10.0
"""Silence after which a connection is closed; Prometheus' own scrape timeout is 10 s by default."""
CONNECTIONS_AT_ONCE = 16
"""A node is scraped by one or two Prometheus servers. For one beyond this, the oldest that has not asked anything yet
is closed: a scraper asks at once, and whoever only holds connections open must not lock it out."""
MAKE_ROOM_TIMEOUT_S = 1.0
"""For the thread of a closed connection to end; it takes milliseconds."""

GZIP_LEVEL = 1
"""Of a target with 1,000 ranks it makes a sixteenth in 9 ms; level 9 makes an eighteenth in 50 ms."""

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

    The text is OpenMetrics or Prometheus' own format, as the scraper asks.
    """

    def __init__(self, view: Callable[[], NodeView], *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._app = _routes(_metrics(NodeCollector(view)))
        self._wanted = (host, port)
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Binds the port and begins to serve. Raises ``OSError`` if the port is taken or the host is not ours."""
        assert self._server is None, "a MetricsServer is started once"
        host, port = self._wanted
        self._server = _Server(host, port, self._app)
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
        """``host:port`` as bound; ``service_discovery.advertised_address`` makes one that others can reach."""
        host = self._wanted[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def stop(self) -> None:
        """Ends serving and frees the port; a scrape that is under way may still finish. Does nothing twice."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is not None and thread is not None:
            server.shutdown()
            thread.join()
            server.server_close()


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


def _metrics(collector: NodeCollector) -> WSGIApplication:
    """The page in the format that is asked for, compressed for those who accept that (Prometheus does); of the metrics
    called ``name[]`` in the query, if it names any."""

    def metrics(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            start_response("405 Method Not Allowed", [("Allow", "GET"), ("Content-Length", "0")])
            return []
        only = parse_qs(environ.get("QUERY_STRING", "")).get("name[]", ())
        body, content_type = collector.scrape(choose_format(environ.get("HTTP_ACCEPT")), only=only)
        headers = [("Content-Type", content_type)]
        if accepts_gzip(environ.get("HTTP_ACCEPT_ENCODING")):
            body = gzip.compress(body, GZIP_LEVEL)
            headers.append(("Content-Encoding", "gzip"))
        start_response("200 OK", [*headers, ("Content-Length", str(len(body)))])
        return [body]

    return metrics


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_TIMEOUT_S
    server: _Server

    def parse_request(self) -> bool:
        understood = super().parse_request()
        self.server.has_asked(self.connection)
        return understood

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
        """A line per scrape would drown the agent's log."""
        log.debug("%s: %s", self.address_string(), format % args)


class _Server(ThreadingMixIn, WSGIServer):
    """A thread a connection, at most ``CONNECTIONS_AT_ONCE`` of them."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_port = False
    request_queue_size = 32

    def __init__(self, host: str, port: int, app: WSGIApplication) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        self._free = threading.BoundedSemaphore(CONNECTIONS_AT_ONCE)
        self._silent: dict[socket.socket, None] = {}
        """Connections whose request is not there yet, oldest first."""
        self._silent_lock = threading.Lock()
        super().__init__((host, port), _Handler)
        self.set_app(app)

    def server_bind(self) -> None:
        """Without the reverse name look-up of ``HTTPServer``, which can hang for long where DNS is broken."""
        TCPServer.server_bind(self)
        host, port = self.server_address[:2]
        self.server_name, self.server_port = str(host), int(port)
        self.setup_environ()

    def has_asked(self, request: socket.socket) -> None:
        """The request of this connection is read: from now on it is not closed to make room."""
        with self._silent_lock:
            self._silent.pop(request, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        with self._silent_lock:
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had, so none will give the place back
            self.has_asked(request)
            self._free.release()
            raise

    def _make_room(self) -> bool:
        """Close the oldest silent connection and take its place; false if there is none."""
        with self._silent_lock:
            oldest = next(iter(self._silent), None)
            if oldest is None:
                return False
            del self._silent[oldest]
        with contextlib.suppress(OSError):  # it ended just now
            oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread
        return self._free.acquire(timeout=MAKE_ROOM_TIMEOUT_S)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_asked(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 (the base class's signature)
        """Scrapers hang up; that is theirs to report."""
        log.debug("a connection from %s ended badly: %s", client_address, sys.exc_info()[1])
