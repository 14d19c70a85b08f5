"""How many connections a small server has at once, and who goes when there are too many."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegauge.web.server import PromptShutdownMixIn, hang_up


@dataclass
class _Place:
    connection: socket.socket
    since_s: float
    asking: bool = True
    """It has not said yet what it wants, and nobody has hung up on it."""


class Connections:
    """At most ``most`` at once. Thread-safe.

    While all places are taken, whoever has been asking for longest, and for ``patience_s`` at least, is hung up on.
    API servers and kubelets say within milliseconds what they want; a pod that holds connections open, or says a byte
    now and then, keeps nobody out with them.
    """

    def __init__(self, most: int, *, patience_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._patience_s = patience_s
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._places: dict[socket.socket, _Place] = {}

    def enter(self, request: socket.socket, *, timeout_s: float) -> bool:
        """Take a place for ``request``; false if there is none in time."""
        deadline_s = self._monotonic_s() + timeout_s
        with self._changed:
            while len(self._places) >= self._most:
                now_s = self._monotonic_s()
                next_s = self._make_room(now_s)
                if now_s >= deadline_s:
                    return False
                self._changed.wait(min(deadline_s, deadline_s if next_s is None else next_s) - now_s)
            self._places[request] = _Place(request, self._monotonic_s())
            return True

    def secured(self, request: socket.socket, connection: socket.socket) -> None:
        """TLS has taken over the socket of ``request``."""
        with self._changed:
            self._places[request].connection = connection

    def heard(self, connection: socket.socket) -> None:
        """All of its question has arrived: it is answered, however long that takes."""
        with self._changed:
            for place in self._places.values():
                if place.connection is connection:
                    place.asking = False

    def leave(self, request: socket.socket) -> None:
        with self._changed:
            self._places.pop(request, None)
            self._changed.notify_all()

    def drain(self, patience_s: float) -> None:
        """Wait for those that are there."""
        with self._changed:
            self._changed.wait_for(lambda: not self._places, patience_s)

    def _make_room(self, now_s: float) -> float | None:
        """Hang up on the one that has been asking for longest, if it is time. Returns when it will be otherwise."""
        asking = (place for place in self._places.values() if place.asking)
        oldest = min(asking, key=lambda place: place.since_s, default=None)
        if oldest is None:
            return None
        if now_s - oldest.since_s < self._patience_s:
            return oldest.since_s + self._patience_s
        oldest.asking = False
        hang_up(oldest.connection)
        return None


class BoundedMixIn(PromptShutdownMixIn):
    """A ``socketserver`` with a thread for each of its ``connections``."""

    request_queue_size = 128
    connections: Connections
    look_s: float
    """How long one wait for a place lasts."""

    def goes_on_waiting(self) -> bool:
        """Whether a connection that found no place in ``look_s`` is to wait on, or is turned away."""
        return False

    def process_request(self, request: Any, client_address: Any) -> None:
        # Waiting here leaves further ones in the kernel's queue. No connection holds its place for long.
        while not self.connections.enter(request, timeout_s=self.look_s):
            if not self.goes_on_waiting():
                self.shutdown_request(request)  # type: ignore[attr-defined] # of the server that this is mixed into
                return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread was to be had, so none will give the place back
            self.connections.leave(request)
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.leave(request)
