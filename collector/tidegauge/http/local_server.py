"""Serves on a Unix socket in the state directory, to root and to the user of this process, as the kernel names them.

Neither a full disk nor a missing folder must lock out the head's own commands for good: a failed bind is retried in the
background.
"""

from __future__ import annotations

import logging
import os
import pwd
import socket
import struct
import threading
from email.message import Message
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

from tidegauge.http.access import NO_HEADERS, OpenDoor, Viewer
from tidegauge.http.server import App, GuardedMixIn, RequestHandler, serving_thread

log = logging.getLogger(__name__)

AGAIN_S = 1.0


class LocalServing:
    """Serves from daemon threads, from ``start``, or as soon as the socket can be bound, to ``stop``."""

    def __init__(self, path: Path, app: App) -> None:
        self._path = path
        self._app = app
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._server: _LocalServer | None = None

    def start(self) -> str | None:
        """Serve; returns why that has to wait, or ``None``. Never raises ``OSError``."""
        problem = self._tried()
        if problem is not None:
            threading.Thread(target=self._until_bound, name="tidegauge-api-local-bind", daemon=True).start()
        return problem

    def stop(self) -> None:
        self._stopped.set()
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _until_bound(self) -> None:
        while not self._stopped.wait(AGAIN_S):
            if self._tried() is None:
                log.info("commands on this node ask over %s now", self._path)
                return

    def _tried(self) -> str | None:
        with self._lock:
            if self._stopped.is_set():
                return None
            try:
                server = _LocalServer(self._path, self._app)
            except OSError as error:
                return error.strerror or str(error)
            serving_thread(server)
            self._server = server
            return None


class _LocalDoor(OpenDoor):
    """Admits everybody as an admin, under the kernel's name for them: the server has checked the user."""

    def admit(self, authorization: str | None, peer: str, headers: Message[str, str] = NO_HEADERS) -> Viewer:  # noqa: ARG002
        return Viewer(peer, sees_all=True, reads_metrics=True, speaks_for_others=True)


class _LocalServer(GuardedMixIn, UnixStreamServer):
    """A server on a socket in a folder that only its owner enters; it checks the user of each connection as well."""

    def __init__(self, path: Path, app: App) -> None:
        self.guard(app, _LocalDoor())
        self._path = path
        self._inode: tuple[int, int] | None = None
        super().__init__(path.name, RequestHandler)

    def server_bind(self) -> None:
        # By the folder's descriptor: a name of its own may be longer than the 107 bytes that unix(7) allows.
        folder = os.open(self._path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._path.unlink(missing_ok=True)
            self.socket.bind(f"/proc/self/fd/{folder}/{self._path.name}")
        finally:
            os.close(folder)
        self._inode = _inode(self._path)
        self._path.chmod(0o600)
        self.server_address = self.socket.getsockname()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """The connection, with name and uid of the client instead of an address."""
        request, _ = super().get_request()
        _, uid, _ = struct.unpack(
            "3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        )
        return request, (_user_name(uid), uid)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return client_address[1] in (0, os.geteuid())

    def server_close(self) -> None:
        # Another head may have put its own there since. Before ours is closed: until then its inode is nobody else's.
        if self._inode is not None and _inode(self._path) == self._inode:
            self._path.unlink(missing_ok=True)
        super().server_close()


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
