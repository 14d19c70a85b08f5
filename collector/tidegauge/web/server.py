"""What the HTTP servers have in common: so many connections at once, TLS in the connection's own thread, an end for
whoever says nothing, drips bytes or does not read. Standard library only; the coordinator's API stands on it too.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import sys
import threading
import time
from dataclasses import dataclass
from socketserver import StreamRequestHandler, ThreadingMixIn
from typing import Any, BinaryIO, NamedTuple

from tidegauge.web.access import OPEN_DOOR, Door

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 128 * 1024
"""Request line and headers: together the standard library would take 6.5 MB. A job id in a URL may have 12 KB."""
MAKE_ROOM_TIMEOUT_S = 1.0
"""For the thread of a closed connection to end; it takes milliseconds."""


class ServerLimits(NamedTuple):
    """Of one server."""

    connections: int
    """At once. For one beyond this, the oldest that has not asked anything yet is closed: whoever has something to ask
    asks at once, and whoever only holds connections open must not lock others out."""
    ask_within_s: float
    """From the connection to the last line of the request's headers, TLS included, however steadily bytes drip."""
    whole_s: float
    """The connection as a whole, with a client that reads slowly."""


@dataclass
class _Place:
    connection: socket.socket
    since_s: float
    is_silent: bool = True
    """Its request is not there yet, and nobody has hung up on it."""


class PromptShutdownMixIn(ThreadingMixIn):
    """Before a ``TCPServer``: a thread for each connection, and an end at once."""

    daemon_threads = True
    block_on_close = False

    def shutdown(self) -> None:
        """``serve_forever`` notices the end of its socket; else it would wait for its poll interval
        (shutdown(2); ``socketserver.BaseServer.shutdown``)."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RD)  # type: ignore[attr-defined]  # of the server that this is mixed into
        super().shutdown()  # type: ignore[misc]


class GuardedMixIn(PromptShutdownMixIn):
    """Before a ``TCPServer``, which serves by ``serve_forever`` with ``poll_interval`` at most half of a limit."""

    def guard(self, limits: ServerLimits, door: Door = OPEN_DOOR) -> None:
        """Call it before the server's own constructor."""
        self.door = door
        self._limits = limits
        self._free = threading.BoundedSemaphore(limits.connections)
        self._lock = threading.Lock()
        self._places: dict[socket.socket, _Place] = {}
        """By the socket that was accepted, oldest first."""

    def has_asked(self, connection: socket.socket) -> None:
        """The request of this connection is read: from now on it is not closed to make room."""
        with self._lock:
            for place in self._places.values():
                if place.connection is connection:
                    place.is_silent = False

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)  # type: ignore[attr-defined]  # of the server that this is mixed into
            return
        with self._lock:
            self._places[request] = _Place(request, time.monotonic())
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had, so none will give the place back
            self._leave(request)
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
            self._leave(request)

    def service_actions(self) -> None:
        """``serve_forever`` calls it between two connections, and every ``poll_interval`` seconds."""
        super().service_actions()  # type: ignore[misc]  # of the server that this is mixed into
        now_s = time.monotonic()
        with self._lock:
            for place in self._places.values():
                most_s = self._limits.ask_within_s if place.is_silent else self._limits.whole_s
                if now_s - place.since_s > most_s:
                    hang_up(place.connection)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the base class's signature
        """Clients hang up; that is theirs to report."""
        log.debug("a connection from %s ended badly: %s", client_address, sys.exc_info()[1])

    def _secured(self, request: socket.socket) -> socket.socket:
        """The connection as it is to be read. In its own thread: a handshake that does not end holds up nobody."""
        context = self.door.tls()
        if context is None:
            return request
        connection = context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._places[request].connection = connection
        try:
            connection.settimeout(self._limits.ask_within_s)  # for the handshake as a whole
            connection.do_handshake()
            self.door.check_client(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _make_room(self) -> bool:
        """Close the oldest silent connection and take its place; false if there is none."""
        with self._lock:
            oldest = next((place for place in self._places.values() if place.is_silent), None)
            if oldest is None:
                return False
            oldest.is_silent = False
            hang_up(oldest.connection)  # wakes its thread
        return self._free.acquire(timeout=MAKE_ROOM_TIMEOUT_S)

    def _leave(self, request: socket.socket) -> None:
        with self._lock:
            self._places.pop(request, None)
        self._free.release()


class GuardedRequest(StreamRequestHandler):
    """Before a ``BaseHTTPRequestHandler``: bounds what is read of a request's head, and says when it was read."""

    server: Any

    def setup(self) -> None:
        super().setup()
        self.rfile = _Head(self.rfile)  # type: ignore[assignment, arg-type]  # as much of a file as http.server reads

    def parse_request(self) -> bool:
        understood: bool = super().parse_request()  # type: ignore[misc]  # BaseHTTPRequestHandler's
        self.server.has_asked(self.connection)
        return understood


class _Head:
    """A request's lines, so many bytes of them; then its body, which whoever reads it bounds."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left_bytes = MAX_HEADER_BYTES

    def readline(self, size: int = -1) -> bytes:
        line = self._file.readline(size)
        self._left_bytes -= len(line)
        if self._left_bytes < 0:
            raise ConnectionError(f"a request of more than {MAX_HEADER_BYTES} bytes")
        return line

    def read(self, size: int) -> bytes:
        return self._file.read(size)

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()


def hang_up(connection: socket.socket) -> None:
    """Have whoever reads from it see its end. From another thread."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # SSLSocket's own would take TLS off under the reader
