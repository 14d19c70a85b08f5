"""The coordinator's HTTP API: fixed paths, GET only, read only. Standard library, loopback by default.

Nothing in a request chooses a file, a name or an unbounded amount of work: paths are looked up in a table, query
parameters are bounded numbers and texts, bodies are never read, and a limited number of requests is served at a time.
Who may read what: ``route_access``.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer, UnixStreamServer
from typing import Any
from urllib.parse import parse_qs

from tidegauge.cluster.route_access import ROUTE_ACCESS, Access, may_read
from tidegauge.core.web_access import EVERYBODY, OPEN_DOOR, Door, Refusal, Viewer
from tidegauge.core.wire import to_json
from tidegauge_exporter.guarded_server import GuardedMixIn, GuardedRequest, Limits

log = logging.getLogger(__name__)

MAX_REQUESTS_AT_ONCE = 16
"""People, scripts, one or two Prometheus servers: more at once is somebody's mistake, answered with 503."""
REQUEST_TIMEOUT_S = 10.0
LIMITS = Limits(connections=64, ask_within_s=REQUEST_TIMEOUT_S, whole_s=120.0)
"""A history of weeks takes the coordinator seconds to tell, and a slow client some more to read."""
LOOK_S = 0.5
"""How often connections that take too long are looked for."""
MAX_QUERY_CHARS = 16_000
"""A job id may have 1024 characters, each of them up to 12 in a URL."""
MOST_FIELDS = 32
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
    viewer: Viewer = EVERYBODY
    """Who asks: what they may see of an ``Access.OWN`` page is for its route to see to."""

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
    """Beside those that every answer has; stronger than those of the web configuration."""


Route = Callable[[Request], Answer]


def json_route(value: Callable[[Request], object]) -> Route:
    """A route that answers with ``to_json`` of what ``value`` returns."""
    return lambda request: Answer(to_json(value(request)))


def html_route(page: Callable[[Request], str]) -> Route:
    """A route that answers with the page that ``page`` returns: a whole document with its style sheet in it."""
    return lambda request: Answer(page(request).encode(errors="replace"), HTML_TYPE, HTML_HEADERS)


class HttpApi:
    """Serves a table of routes from daemon threads, from ``start`` to ``stop``."""

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        host: str,
        port: int,
        door: Door = OPEN_DOOR,
        access: Mapping[str, Access] = ROUTE_ACCESS,
        local_socket: Path | None = None,
    ) -> None:
        """``local_socket``: also served there, without TLS and names, to root and to this process' own user alone."""
        self._routes = dict(routes)
        self._host = host
        self._port = port
        self._door = door
        self._access = access
        self._local_socket = local_socket
        self._server: _Server | None = None
        self._local: _LocalServer | None = None

    def start(self) -> None:
        """Bind and serve. Raises ``OSError`` if the port is taken or the host is not one of this machine."""
        handler = _handler(self._routes, self._access, threading.BoundedSemaphore(MAX_REQUESTS_AT_ONCE))
        self._server = _Server((self._host, self._port), handler, self._door)
        self._serve(self._server, "tidegauge-api")
        if self._local_socket is not None:
            try:
                self._local = _LocalServer(self._local_socket, handler)
            except OSError as error:
                log.warning("commands on this node ask over %s: %s: %s", self.url, self._local_socket, error.strerror)
            else:
                self._serve(self._local, "tidegauge-api-local")

    @property
    def port(self) -> int:
        """The port as bound."""
        assert self._server is not None, "not started"
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self._host, self._host)
        return (
            f"{self._door.scheme}://[{host}]:{self.port}"
            if ":" in host
            else f"{self._door.scheme}://{host}:{self.port}"
        )

    def stop(self) -> None:
        for server in (self._server, self._local):
            if server is not None:
                server.shutdown()
                server.server_close()
        self._server = self._local = None

    def _serve(self, server: TCPServer, name: str) -> None:
        threading.Thread(target=server.serve_forever, args=(LOOK_S,), name=name, daemon=True).start()


class _Server(GuardedMixIn, TCPServer):
    request_queue_size = 64
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], door: Door) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self.guard(LIMITS, door)
        super().__init__(address, handler)


class _LocalServer(GuardedMixIn, UnixStreamServer):
    """On a socket in the state directory, which only its owner enters; the kernel says who connects all the same."""

    request_queue_size = 64

    def __init__(self, path: Path, handler: type[BaseHTTPRequestHandler]) -> None:
        self.guard(LIMITS)
        self._path = path
        super().__init__(path.name, handler)

    def server_bind(self) -> None:
        # By the folder's descriptor: a name of its own may be longer than the 107 bytes that unix(7) allows.
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._path.unlink(missing_ok=True)
            self.socket.bind(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        self._path.chmod(0o600)
        self.server_address = self.socket.getsockname()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class's signature
        _, uid, _ = struct.unpack(
            "3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return uid in (0, os.geteuid())

    def server_close(self) -> None:
        super().server_close()
        self._path.unlink(missing_ok=True)


def _handler(
    routes: Mapping[str, Route], access: Mapping[str, Access], slots: threading.BoundedSemaphore
) -> type[BaseHTTPRequestHandler]:
    class Handler(GuardedRequest, BaseHTTPRequestHandler):
        timeout = REQUEST_TIMEOUT_S
        server_version = "tidegauge"
        sys_version = ""

        def do_GET(self) -> None:
            path, _, query = self.path.partition("?")
            viewer = self._admitted(path)
            if viewer is None:
                return
            if not slots.acquire(blocking=False):
                self._send(503, b'{"error":"too many requests at once"}')
                return
            try:
                self._answer(path, query.partition("#")[0], viewer)
            finally:
                slots.release()

        do_HEAD = do_GET  # noqa: N815 - the name that the base class calls

        def _admitted(self, path: str) -> Viewer | None:
            """Who asks; ``None``: they were refused, and told so. A stranger does not learn which pages there are."""
            decision = access.get(path, Access.ADMIN if path in routes else Access.SIGNED_IN)
            if decision is Access.OPEN:
                return EVERYBODY
            door: Door = self.server.door
            viewer = door.admit(self.headers.get("Authorization"), self.address_string())
            if isinstance(viewer, Refusal):
                self._send(viewer.status, to_json({"error": viewer.text}), headers=viewer.headers)
                return None
            if not may_read(viewer, decision):
                self._send(403, to_json({"error": _not_allowed(viewer, path, decision)}))
                return None
            return viewer

        def _answer(self, path: str, query: str, viewer: Viewer) -> None:
            route = routes.get(path)
            if route is None:
                self._send(404, to_json({"error": "no such page", "pages": sorted(routes)}))
                return
            try:
                values = {name: values[-1] for name, values in _parsed(query).items()}
                answer = route(Request(values, self.headers.get("Accept"), viewer))
            except (BadRequestError, NotFoundError, UnavailableError) as error:
                self._send(_STATUS[type(error)], to_json({"error": str(error)}))
            except Exception:
                log.exception("the API failed on %s", path)
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
            ours = {name.lower() for name, _ in headers} | {"x-content-type-options"}
            for name, value in (*headers, *(more for more in self.server.door.headers if more[0].lower() not in ours)):
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def address_string(self) -> str:
            return self.client_address[0] if self.client_address else "local"

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in the base class
            log.debug("%s %s", self.address_string(), format % args)

    return Handler


def _parsed(query: str) -> dict[str, list[str]]:
    """Raises ``BadRequestError`` for one of more parts than any page has."""
    try:
        return parse_qs(query[:MAX_QUERY_CHARS], max_num_fields=MOST_FIELDS)
    except ValueError as error:
        raise BadRequestError(f"the query cannot be read: {error}") from None


def _not_allowed(viewer: Viewer, path: str, decision: Access) -> str:
    lists = "api_admins or metrics_readers" if decision is Access.METRICS else "api_admins"
    return f"{viewer.name} may not read {path}: an admin of this service lists who may in {lists}"
