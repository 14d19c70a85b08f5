"""The places for connections: bounded in all and for each process, and none is kept by somebody who only waits."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

MAX_CONNECTIONS = 64
MAX_OF_A_PROCESS = 32
"""An agent has some twenty threads. For a moment there are two, where one follows another."""
GIVES_WAY_S = 0.5
"""For a thread that is told to end its connection: it waits for a request, and wakes at once."""


class ServedConnection:
    """What one connection does."""

    def __init__(self, connection: socket.socket, pid: int, now_s: float) -> None:
        self.connection = connection
        self.pid = pid
        """Who connected."""
        self.since_s = now_s
        self.is_busy = False
        """Whether it carries out a request, since ``since_s``; else it waits for one."""

    def gives_way(self) -> bool:
        """Whether it may be ended: nobody waits for an answer, and none is on its way, which would stay in the
        kernel's count of the descriptors of root."""
        if self.is_busy:
            return False
        with suppress(OSError):  # it has just ended: the place comes free
            return not is_unread(self.connection)
        return False


class ConnectionPlaces:
    """The places of all connections. For any thread."""

    def __init__(self, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._taken: list[ServedConnection] = []

    def take(self, connection: socket.socket, pid: int) -> ServedConnection | None:
        """A place for a connection of the process ``pid``; ``None``: there is none. Of a process that has all of its
        own, and of the one with most where all are taken, the connection that has waited longest gives way."""
        with self._changed:
            if not self._has_room(pid):
                if (crowded := self._one_that_gives_way(pid)) is None:
                    return None
                with suppress(OSError):
                    crowded.connection.shutdown(socket.SHUT_RDWR)
                if not self._changed.wait_for(lambda: self._has_room(pid), GIVES_WAY_S):
                    return None
            place = ServedConnection(connection, pid, self._monotonic_s())
            self._taken.append(place)
            return place

    def give_back(self, place: ServedConnection) -> None:
        with self._changed:
            self._taken.remove(place)
            self._changed.notify_all()

    def now(self, place: ServedConnection, *, is_busy: bool) -> None:
        """It begins to carry out a request, or to wait for one. Without the lock, as this is done twice a request."""
        place.since_s = self._monotonic_s()
        place.is_busy = is_busy

    def longest_act_s(self, *, besides: ServedConnection) -> float:
        """For how long the longest request of now has been carried out; 0: there is none but the one of ``besides``."""
        with self._changed:
            now_s = self._monotonic_s()
            busy = (one for one in self._taken if one.is_busy and one is not besides)
            return max((now_s - one.since_s for one in busy), default=0.0)

    def _has_room(self, pid: int) -> bool:
        of_it = sum(one.pid == pid for one in self._taken)
        return len(self._taken) < MAX_CONNECTIONS and of_it < MAX_OF_A_PROCESS

    def _one_that_gives_way(self, pid: int) -> ServedConnection | None:
        number = Counter(one.pid for one in self._taken)
        candidates = [one for one in self._taken if number[pid] < MAX_OF_A_PROCESS or one.pid == pid]
        candidates.sort(key=lambda one: (-number[one.pid], one.since_s))
        return next((one for one in candidates if one.gives_way()), None)


def is_unread(connection: socket.socket) -> bool:
    """Whether the client has not read all answers (``SIOCOUTQ``). Raises ``OSError``."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))
    return bool(waiting > 0)
