"""The HTTP server of every process of the service: an ``App``, a table of routes, on a TCP port.

Whatever arrives is bounded here: connections at once, seconds, bytes of a head and of a body. TLS is spoken in the
connection's own thread, and nothing that a client sends is logged. Standard library only.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, BinaryIO, NamedTuple, Optional, Union

from tidegauge.core.wire import to_json
from tidegauge.http.access import OPEN_DOOR, Door, Refusal, Viewer
from tidegauge.http.connections import Connections, ServerLimits

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 128 * 1024
"""Request line and headers: together the standard library would take 6.5 MB. A job id in a URL may have 12 KB."""
MAKE_ROOM_TIMEOUT_S = 1.0
"""For the thread of a closed connection to end; it takes milliseconds."""
LOOK_S = 2.0
"""How often connections that take too long are looked for; at most half of a limit."""
JSON_TYPE = "application/json"
TEXT_TYPE = "text/plain; charset=utf-8"
HTML_TYPE = "text/html; charset=utf-8"
HEADERS = (("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff"), ("Connection", "close"))
"""Of every response that does not say otherwise. One request a connection: a client that finds a kept one closed just
as it asks gets no answer."""


@dataclass(frozen=True)
class HttpRequest:
    """A request, once its head has arrived."""

    method: str
    path: str
    """Without the query, as it was sent."""
    query: str
    headers: Message[str, str]
    admit: Callable[[], Union[Viewer, Refusal]]
    """Who asks, or why they are not let in, as the server's door has it."""
    body: Callable[[int, str], Union[bytes, Refusal]]
    """The body, of so many bytes at most; what to do about a longer one. Not read before it is asked for."""
    peer: str = ""
    """The client's address."""


@dataclass(frozen=True)
class Response:
    """A response."""

    body: bytes
    content_type: str = JSON_TYPE
    headers: tuple[tuple[str, str], ...] = ()
    """Stronger than ``HEADERS``, and than those of the web configuration."""
    status: int = 200


Handler = Callable[[HttpRequest], Union[Response, Refusal]]
"""Called in the connection's thread. What it raises is logged, and answered with 500."""
Routes = Mapping[tuple[Optional[str], Optional[str]], Handler]
"""By method and path; ``None`` stands for every other one."""


def json_error(refusal: Refusal) -> Response:
    return Response(to_json({"error": refusal.text}), JSON_TYPE, refusal.headers, refusal.status)


def text_error(refusal: Refusal) -> Response:
    return Response(f"{refusal.text}\n".encode(), TEXT_TYPE, refusal.headers, refusal.status)


class App(NamedTuple):
    """The routes of a server, with its limits."""

    routes: Routes
    """What no route is for is answered with 501."""
    limits: ServerLimits
    process: str
    """Whose log has the cause of a 500."""
    error: Callable[[Refusal], Response] = json_error
    protocol: str = "HTTP/1.0"

    def handler(self, method: str, path: str) -> Optional[Handler]:
        """The handler of a request; a route by path precedes one by method."""
        keys = ((method, path), (None, path), (method, None), (None, None))
        return next((self.routes[key] for key in keys if key in self.routes), None)


class HttpServer:
    """Serves an app from daemon threads, from ``start`` to ``stop``."""

    def __init__(self, app: App, *, host: str = "127.0.0.1", port: int = 0, door: Door = OPEN_DOOR) -> None:
        self.door = door
        self.host = host
        self._app = app
        self._port = port
        self._server: Optional[_TcpServer] = None
        self._thread: Optional[threading.Thread] = None

    def bind(self) -> None:
        """Raises ``OSError`` if the port is taken or the host is not one of this machine."""
        self._server = _TcpServer(self.host, self._port, self._app, self.door)

    def start(self) -> None:
        """Bind, unless that is done, and serve. Raises ``OSError`` as ``bind`` does."""
        assert self._thread is None, "a server is started once"
        if self._server is None:
            self.bind()
        self._thread = serving_thread(self._bound)

    @property
    def listens(self) -> bool:
        """True from ``bind`` to ``stop``."""
        return self._server is not None

    @property
    def port(self) -> int:
        return int(self._bound.server_address[1])

    @property
    def connections(self) -> Connections:
        return self._bound.connections

    @property
    def _bound(self) -> _TcpServer:
        assert self._server is not None, "start() first"
        return self._server

    def stop(self, *, drain_s: float = 0.0) -> None:
        """Free the port, and wait at most ``drain_s`` for running requests. A second call does nothing."""
        server, thread, self._server, self._thread = self._server, self._thread, None, None
        if server is None:
            return
        if thread is not None:
            server.shutdown()
            thread.join()
        server.server_close()
        server.connections.drain(drain_s)


class GuardedMixIn(ThreadingMixIn):
    """Precedes a ``TCPServer`` among the bases: serves an app within its limits, with a thread for each connection."""

    allow_reuse_address = True
    block_on_close = False
    daemon_threads = True
    request_queue_size = 128

    def guard(self, app: App, door: Door) -> None:
        """Call it before the server's own constructor."""
        self.app = app
        self.door = door
        self.connections = Connections(app.limits)

    def shutdown(self) -> None:
        """``serve_forever`` notices the end of its socket; else it would wait for its poll interval
        (shutdown(2); ``socketserver.BaseServer.shutdown``)."""
        self.connections.close()
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)  # type: ignore[attr-defined]  # of the server that this is mixed into
        super().shutdown()  # type: ignore[misc]

    def process_request(self, request: Any, client_address: Any) -> None:
        while not self.connections.enter(request, timeout_s=MAKE_ROOM_TIMEOUT_S):
            self.connections.end_late()
            if self.connections.closed or not self.app.limits.queues:
                self.shutdown_request(request)  # type: ignore[attr-defined]  # of the server that this is mixed into
                return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had, so none will give the place back
            self.connections.leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(self._secured(request), client_address)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError; of a socket that was closed, ValueError
            log.debug("a connection from %s was not taken: %s", client_address, error)
            self.shutdown_request(request)  # type: ignore[attr-defined]
        except Exception:
            log.exception("a connection from %s could not be taken", client_address)
            self.shutdown_request(request)  # type: ignore[attr-defined]
        finally:
            self.connections.leave(request)

    def service_actions(self) -> None:
        """``serve_forever`` calls it between two connections, and every ``LOOK_S``."""
        super().service_actions()  # type: ignore[misc]  # of the server that this is mixed into
        self.connections.end_late()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Clients hang up; that is theirs to report."""
        log.debug("a connection from %s failed: %s", client_address, sys.exc_info()[1])

    def _secured(self, request: socket.socket) -> socket.socket:
        """The connection with TLS, if there is any. In its own thread: a handshake that hangs delays nobody."""
        context = self.door.tls()
        if context is None:
            return request
        connection = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        self.connections.secured(request, connection)
        try:
            connection.settimeout(self.app.limits.ask_within_s)  # for the handshake as a whole
            connection.do_handshake()
            self.door.check_client(connection)
        except BaseException:
            connection.close()
            raise
        return connection


class _TcpServer(GuardedMixIn, TCPServer):
    def __init__(self, host: str, port: int, app: App, door: Door) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        families = {one[0] for one in found}
        self.address_family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
        self.guard(app, door)
        super().__init__((host, port), RequestHandler)


def serving_thread(server: Any) -> threading.Thread:
    """A daemon thread, started, that serves until the server is shut down."""
    thread = threading.Thread(target=server.serve_forever, args=(LOOK_S,), name="tidegauge-http", daemon=True)
    thread.start()
    return thread


class _GoneError(Exception):
    """The connection ended before the end of its request."""


class RequestHandler(BaseHTTPRequestHandler):
    """One connection of a guarded server."""

    server: Any

    def setup(self) -> None:
        self.timeout = self.server.app.limits.ask_within_s  # type: ignore[misc]  # of the class in most servers
        self.protocol_version = self.server.app.protocol
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment, arg-type]  # as much of a file as http.server reads

    def __getattr__(self, name: str) -> Callable[[], None]:
        """``http.server`` looks for ``do_GET`` and so on; which methods there are, the app says."""
        if name.startswith("do_"):
            return self._reply
        raise AttributeError(name)

    def parse_request(self) -> bool:
        understood = super().parse_request()
        if self.command != "POST":  # else its body is a part of what is asked
            self.server.connections.heard(self.connection)
        return understood

    def _reply(self) -> None:
        app: App = self.server.app
        path, _, query = self.path.partition("#")[0].partition("?")
        handler = app.handler(self.command, path)
        if handler is None:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED, f"Unsupported method ({self.command!r})")
            return
        try:
            answer = handler(
                HttpRequest(self.command, path, query, self.headers, self._admit, self._body, self.address_string())
            )
        except _GoneError:
            self.close_connection = True
            return
        except Exception:
            log.exception("a page of the %s failed", app.process)
            answer = Refusal(500, f"internal error; see the {app.process}'s log")
        self.server.connections.heard(self.connection)
        self._send(_printable(answer, app.error) if isinstance(answer, Refusal) else answer)

    def _admit(self) -> Union[Viewer, Refusal]:
        door: Door = self.server.door
        return door.admit(self.headers.get("Authorization"), self.address_string(), self.headers)

    def _body(self, most_bytes: int, advice: str) -> Union[bytes, Refusal]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            return Refusal(411, "Content-Length is missing")
        if len(length) > len(str(most_bytes)) or int(length) > most_bytes:
            return Refusal(413, f"more than {most_bytes} bytes: {advice}")
        try:
            body = self.rfile.read(int(length))
        except OSError as error:
            raise _GoneError from error
        if len(body) < int(length):
            raise _GoneError
        self.server.connections.heard(self.connection)
        return body

    def _send(self, response: Response) -> None:
        own = (("Content-Type", response.content_type), ("Content-Length", str(len(response.body))))
        given = {name.lower() for name, _ in response.headers}
        ours = (*own, *(one for one in HEADERS if one[0].lower() not in given), *response.headers)
        names = {name.lower() for name, _ in ours}
        self.send_response(response.status)
        for name, value in (*ours, *(more for more in self.server.door.headers if more[0].lower() not in names)):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(response.body)

    def send_error(self, code: int, message: Optional[str] = None, explain: Optional[str] = None) -> None:
        """What ``http.server`` says of a request that it cannot read, in the form of this server's other errors.
        Whether a browser sent it is not known: its headers were not read."""
        app: App = self.server.app
        self.close_connection = True
        self.request_version = (
            self.protocol_version
        )  # of HTTP/0.9, which is supposed until it is read, there is no head
        self._send(_printable(Refusal(code, message or explain or HTTPStatus(code).phrase), app.error))

    def version_string(self) -> str:
        return "tidegauge"

    def log_message(self, *_: object) -> None:
        """What a stranger sends is no business of the log, and a line per scrape would drown it."""


def _printable(refusal: Refusal, error: Callable[[Refusal], Response]) -> Response:
    """The refusal as a page; a request may have put half characters into it."""
    return error(refusal._replace(text=refusal.text.encode(errors="replace").decode()))


class _Head:
    """The lines of a request, limited in bytes; then its body, which its reader limits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left_bytes = MAX_HEADER_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(size)
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise ConnectionError(f"a request of more than {MAX_HEADER_BYTES} bytes")
        if b"\r" in line.removesuffix(b"\n").removesuffix(b"\r"):
            # Python's parser would begin a new header there, which a proxy in front took for a part of this one.
            raise ConnectionError("a carriage return within a line")
        return line

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()
