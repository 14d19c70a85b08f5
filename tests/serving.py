"""The tests' own servers: a thread serves from ``start`` to ``stop``, and ends at once, without a poll.

A ``socketserver`` otherwise looks every half second whether it was asked to end.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from socketserver import TCPServer
from types import TracebackType


class Serving:
    """A server in a thread of its own: ``with Serving(server): ...``, or ``start`` and ``stop``, each once."""

    def __init__(self, server: TCPServer) -> None:
        self.server = server
        self._thread = threading.Thread(target=server.serve_forever, name="test-server", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close the port and wait for the thread that listens. Open connections are the server's own matter."""
        with suppress(OSError):  # serve_forever wakes up when its socket ends (shutdown(2))
            self.server.socket.shutdown(socket.SHUT_RD)
        self.server.shutdown()
        self._thread.join()
        self.server.server_close()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
