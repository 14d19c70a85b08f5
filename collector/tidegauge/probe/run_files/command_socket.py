"""The Unix socket of a rank: reads one JSON object per line, replies in one line (design 3.3). Knows no command.

The probe's only thread serves it, so nothing may wait: sockets do not block, lines and clients are bounded, and a
client that sends half a line is dropped after a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, Optional

from tidegauge.probe.run_files.own_descriptor import OwnDescriptor
from tidegauge.probe.run_files.run_folder import RunFolder

MAX_LINE_BYTES = 8192
MAX_CLIENTS = 8
MAX_REPLY_BYTES = 60_000
"""Of a reply: fits the socket's buffer before its client reads, and the 64 KiB that clients read."""
IDLE_S = 5.0
"""Seconds after which a silent client is dropped, so that eight sleepers do not lock others out for good."""

Answer = Callable[[dict[str, Any]], Mapping[str, Any]]
_UCRED = struct.Struct("3i")


class CommandSocket:
    """A listening socket and its clients. ``answer`` takes each request and returns its reply."""

    def __init__(self, folder: RunFolder, name: str, answer: Answer, *, allowed_uids: frozenset[int]) -> None:
        self.path = os.path.join(folder.path, name)
        self._folder = folder
        self._name = name
        self._answer = answer
        self._allowed_uids = allowed_uids
        self._clients: dict[int, _Client] = {}
        folder.remove(name)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._own = OwnDescriptor(self._listener.fileno())
        try:
            # By descriptor: the folder that was checked, and no limit of 107 bytes on its name.
            self._listener.bind(f"/proc/self/fd/{folder.descriptor}/{name}")
            os.chmod(name, 0o600, dir_fd=folder.descriptor)
            self._listener.listen(MAX_CLIENTS)
        except BaseException:
            self._listener.close()
            raise

    def descriptors(self) -> list[int]:
        """Descriptors to wait for until readable. Raises ``DescriptorLostError``."""
        return [self._own.number(), *(client.own.number() for client in self._clients.values())]

    def serve(self, descriptor: int, *, now_s: float) -> None:
        """Handle one readable descriptor. Raises ``DescriptorLostError``."""
        if descriptor == self._own.number():
            self._accept(now_s)
        elif descriptor in self._clients and not self._clients[descriptor].serve(self._answer, now_s):
            self._clients.pop(descriptor).close()

    def drop_idle(self, *, now_s: float) -> None:
        """Close clients that sent nothing for ``IDLE_S``."""
        for descriptor, client in list(self._clients.items()):
            if now_s - client.heard_s > IDLE_S:
                self._clients.pop(descriptor).close()

    def close(self, *, unlink: bool) -> None:
        """Stop listening; in a forked child without unlinking, for the name is the parent's."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        _close(self._listener, self._own)
        if unlink:
            with contextlib.suppress(OSError):
                self._folder.remove(self._name)

    def _accept(self, now_s: float) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # it went away again
        if len(self._clients) >= MAX_CLIENTS or peer_uid(connection) not in self._allowed_uids:
            connection.close()
            return
        connection.setblocking(False)
        # The kernel's default is enough for a reply of that size (unix(7)), but a site may have lowered it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_REPLY_BYTES)
        self._clients[connection.fileno()] = _Client(connection, now_s)


class _Client:
    def __init__(self, connection: socket.socket, now_s: float) -> None:
        self.connection = connection
        self.own = OwnDescriptor(connection.fileno())
        self.heard_s = now_s
        self._pending = b""

    def serve(self, answer: Answer, now_s: float) -> bool:
        """Read the received bytes and answer whole lines; false when the connection is over.

        Raises ``DescriptorLostError``.
        """
        self.own.number()
        try:
            data = self.connection.recv(MAX_LINE_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data:
            return False
        self.heard_s = now_s
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if not self._reply(_reply_to(line, answer)):
                return False
        if len(self._pending) > MAX_LINE_BYTES:
            self._reply({"error": f"a line is at most {MAX_LINE_BYTES} bytes"})
            return False
        return True

    def close(self) -> None:
        _close(self.connection, self.own)

    def _reply(self, reply: Mapping[str, Any]) -> bool:
        line = json.dumps(reply).encode() + b"\n"
        try:
            return self.connection.send(line) == len(line)  # replies are bounded: one that does not fit is not read
        except OSError:
            return False


def _close(connection: socket.socket, own: OwnDescriptor) -> None:
    if own.is_ours():
        connection.close()
    else:
        connection.detach()  # the number is the job's now: only forget it


def _reply_to(line: bytes, answer: Answer) -> Mapping[str, Any]:
    try:
        request = json.loads(line)
    except (ValueError, RecursionError):
        request = None
    if not isinstance(request, dict):
        return {"error": 'a request is one JSON object a line, such as {"command": "ping"}'}
    return answer(request)


def peer_uid(connection: socket.socket) -> Optional[int]:
    """The uid at the other end, from the kernel (SO_PEERCRED, unix(7))."""
    try:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except OSError:
        return None
    return int(_UCRED.unpack(credentials)[1])
