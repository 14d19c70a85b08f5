"""The coordinator's HTTP API: fixed paths, GET only, read only. Standard library, loopback by default.

Nothing in a request chooses a file, a name or an unbounded amount of work: paths are looked up in a table, query
parameters are bounded numbers and texts, bodies are never read, and a limited number of requests is served at a time.
"""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tidegauge.core.wire import to_json

log = logging.getLogger(__name__)

MAX_REQUESTS_AT_ONCE = 16
"""People, scripts, one or two Prometheus servers: more at once is somebody's mistake, answered with 503."""
REQUEST_TIMEOUT_S = 10.0
MAX_QUERY_CHARS = 16_000
"""A job id may have 1024 characters, each of them up to 12 in a URL."""
JSON_TYPE = "application/json"
HTML_TYPE = "text/html; charset=utf-8"
HTML_HEADERS = (
    (
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
)
"""Of pages for people, which hold what jobs call themselves: a browser runs and fetches nothing, whatever slips in."""


class BadRequestError(ValueError):
    """The request cannot be understood; the message goes back with status 400."""


class NotFoundError(LookupError):
    """What the request asks for does not exist; the message goes back with status 404."""


class UnavailableError(Exception):
    """What the answer needs is away for now; the message goes back with status 503."""


_STATUS: Mapping[type[Exception], int] = {BadRequestError: 400, NotFoundError: 404, UnavailableError: 503}


@dataclass(frozen=True)
class Request:
    """What of a request an answer may depend on."""

    query: Mapping[str, str]
    accept: str | None

    def number(self, name: str, *, default: int, most: int = 10**15 - 1) -> int:
        """A whole number from 0 to ``most`` out of the query."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise BadRequestError(f"{name} must be a whole number, not {text[:40]!r}")
        if int(text) > most:
            raise BadRequestError(f"{name} may be {most} at most, not {text}")
        return int(text)

    def text(self, name: str, *, most_chars: int) -> str:
        """A text out of the query, which must be there. What it says is not checked any further."""
        text = self.query.get(name)
        if not text:
            raise BadRequestError(f"{name} is missing")
        if len(text) > most_chars:
            raise BadRequestError(f"{name} may have {most_chars} characters at most, not {len(text)}")
        return text


@dataclass(frozen=True)
class Answer:
    """What goes back with status 200."""

    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    """Beside those that every answer has."""


Route = Callable[[Request], Answer]


def json_route(value: Callable[[Request], object]) -> Route:
    """A route that answers with ``to_json`` of what ``value`` returns."""
    return lambda request: Answer(to_json(value(request)))


def html_route(page: Callable[[Request], str]) -> Route:
    """A route that answers with the page that ``page`` returns: a whole document with its style sheet in it."""
    return lambda request: Answer(page(request).encode(errors="replace"), HTML_TYPE, HTML_HEADERS)


class HttpApi:
    """Serves a table of routes from daemon threads, from ``start`` to ``stop``."""

    def __init__(self, routes: Mapping[str, Route], *, host: str, port: int) -> None:
        self._routes = dict(routes)
        self._host = host
        self._port = port
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        """Bind and serve. Raises ``OSError`` if the port is taken or the host is not one of this machine."""
        handler = _handler(self._routes, threading.BoundedSemaphore(MAX_REQUESTS_AT_ONCE))
        self._server = _Server((self._host, self._port), handler)
        threading.Thread(target=self._server.serve_forever, name="tidegauge-api", daemon=True).start()

    @property
    def port(self) -> int:
        """The port as bound."""
        assert self._server is not None, "not started"
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

    def server_bind(self) -> None:
        # Not HTTPServer's: that one asks the resolver for the host's full name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        log.debug("a client of the API went away: %s", sys.exc_info()[1])


def _handler(routes: Mapping[str, Route], slots: threading.BoundedSemaphore) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "tidegauge"
        sys_version = ""

        def do_GET(self) -> None:
            if not slots.acquire(blocking=False):
                self._send(503, b'{"error":"too many requests at once"}')
                return
            try:
                self._answer()
            finally:
                slots.release()

        do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            route = routes.get(parts.path)
            if route is None:
                self._send(404, to_json({"error": "no such page", "pages": sorted(routes)}))
                return
            try:
                query = {name: values[-1] for name, values in parse_qs(parts.query[:MAX_QUERY_CHARS]).items()}
                answer = route(Request(query, self.headers.get("Accept")))
            except (BadRequestError, NotFoundError, UnavailableError) as error:
                self._send(_STATUS[type(error)], to_json({"error": str(error)}))
            except Exception:
                log.exception("the API failed on %s", parts.path)
                self._send(500, b'{"error":"internal error; see the coordinator\'s log"}')
            else:
                self._send(200, answer.body, answer.content_type, answer.headers)

        def _send(
            self, status: int, body: bytes, content_type: str = JSON_TYPE, headers: Iterable[tuple[str, str]] = ()
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            for name, value in headers:
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            log.debug("%s %s", self.address_string(), format % args)

    return Handler
