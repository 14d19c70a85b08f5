"""The HTTP client of the service for other services. Standard library only.

It asks no proxy and follows no redirection, so that credentials go to the configured address only. Each request has a
connection of its own.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

from tidegauge.core.text import one_line
from tidegauge.http.connections import hang_up


class HttpAnswer(NamedTuple):
    """A response of any status."""

    status: int
    content_type: str
    body: bytes
    """At most one byte more than the client takes."""


class NoResponseError(Exception):
    """There was no complete response; the message says why."""


class HttpClient:
    """A client of the service at ``url``, which may have a path, as behind a gateway."""

    def __init__(self, url: str, *, timeout_s: float, max_answer_bytes: int, looks_like: str) -> None:
        """Raises ``ValueError``, with the text of ``looks_like``, for a URL that is no address, or contains a name.

        ``timeout_s`` limits a whole response.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError(looks_like) from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username is not None:
            raise ValueError(looks_like)
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, port
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._max_answer_bytes = max_answer_bytes

    def ask(self, method: str, path: str, body: Optional[bytes], headers: Mapping[str, str]) -> HttpAnswer:
        """Raises ``NoResponseError``."""
        connection = self._connection()
        late = threading.Event()
        watchdog: Optional[threading.Timer] = None
        try:
            connection.connect()
            watchdog = threading.Timer(self._timeout_s, _end, (connection.sock, late))
            watchdog.daemon = True
            watchdog.start()
            if body is not None:
                headers = {"Content-Type": "application/json", **headers}
            connection.request(
                method, self._prefix + path, body, {"User-Agent": "tidegauge", "Connection": "close", **headers}
            )
            got = connection.getresponse()
            answer = HttpAnswer(got.status, got.getheader("Content-Type", "?"), got.read(self._max_answer_bytes + 1))
            if late.is_set():
                raise TimeoutError
            if got.length and len(answer.body) <= self._max_answer_bytes:
                raise http.client.IncompleteRead(answer.body, got.length)
        except (OSError, http.client.HTTPException) as error:
            timed_out = late.is_set() or isinstance(error, TimeoutError)
            why = (
                f"no answer within {self._timeout_s:g} s" if timed_out else one_line(str(error).strip()) or repr(error)
            )
            raise NoResponseError(why) from error
        finally:
            if watchdog is not None:
                watchdog.cancel()
            connection.close()
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        # Not urllib: it follows redirections with the token, and asks the proxy of http_proxy.
        if self._secure:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def _end(connection: socket.socket, late: threading.Event) -> None:
    """Ends a response that arrives slowly, which a socket's own timeout does not notice."""
    late.set()
    hang_up(connection)
