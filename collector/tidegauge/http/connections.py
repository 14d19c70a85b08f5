"""Limits a server's connections: their number, which one is closed for a new one, and their time."""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Optional


class ServerLimits(NamedTuple):
    """The limits of one server."""

    connections: int
    """At once. Beyond this, the oldest connection without a request is closed: honest clients ask at once, and whoever
    only holds connections open must not lock others out."""
    ask_within_s: float
    """From the connection to the end of the request, TLS included, however steadily bytes drip. Also the longest
    silence."""
    whole_s: float
    """The connection as a whole, with a client that reads slowly."""
    patience_s: float = 0.0
    """How long a connection may take to ask, even if others need its place."""
    queues: bool = False
    """Whether one for which nobody gives way waits in the kernel's queue until another is answered, or is closed."""


@dataclass
class _Place:
    connection: socket.socket
    since_s: float
    is_silent: bool = True
    """Its request is not there yet, and nobody has hung up on it."""


class Connections:
    """The connections of one server, within its limits. Thread-safe."""

    def __init__(self, limits: ServerLimits, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._places: dict[socket.socket, _Place] = {}
        """By the socket that was accepted, oldest first."""
        self.closed = False
        """Nobody comes in any more."""

    def enter(self, request: socket.socket, *, timeout_s: float) -> bool:
        """Take a place for ``request``; false if none is free in time."""
        deadline_s = self._monotonic_s() + timeout_s
        room_s: Optional[float] = None
        with self._changed:
            while len(self._places) >= self._limits.connections:
                now_s = self._monotonic_s()
                if room_s != math.inf:  # else one has given way already, and its thread has yet to end
                    room_s = self._make_room(now_s)
                if self.closed or now_s >= deadline_s or (room_s is None and not self._limits.queues):
                    return False
                self._changed.wait(min(deadline_s, math.inf if room_s is None else room_s) - now_s)
            self._places[request] = _Place(request, self._monotonic_s())
            return True

    def secured(self, request: socket.socket, connection: socket.socket) -> None:
        """TLS has replaced the socket of ``request``."""
        with self._changed:
            self._places[request].connection = connection

    def heard(self, connection: socket.socket) -> None:
        """Its request has arrived: it is no longer closed to make room."""
        with self._changed:
            for place in self._places.values():
                if place.connection is connection:
                    place.is_silent = False

    def leave(self, request: socket.socket) -> None:
        with self._changed:
            self._places.pop(request, None)
            self._changed.notify_all()

    def end_late(self) -> None:
        """Hang up on connections that exceed the time limits."""
        with self._changed:
            for place in self._places.values():
                most_s = self._limits.ask_within_s if place.is_silent else self._limits.whole_s
                if self._monotonic_s() - place.since_s > most_s:
                    hang_up(place.connection)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def drain(self, patience_s: float) -> bool:
        """Wait until all connections are closed; false after ``patience_s``."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._places, patience_s)

    def _make_room(self, now_s: float) -> Optional[float]:
        """Hang up on the oldest silent connection when due; returns when there may be room, ``None`` for never."""
        oldest = next((place for place in self._places.values() if place.is_silent), None)
        if oldest is None:
            return None
        if now_s - oldest.since_s < self._limits.patience_s:
            return oldest.since_s + self._limits.patience_s
        oldest.is_silent = False
        hang_up(oldest.connection)  # wakes its thread
        return math.inf


def hang_up(connection: socket.socket) -> None:
    """Let the reader of the connection, another thread, see its end."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # SSLSocket's own would take TLS off under the reader
