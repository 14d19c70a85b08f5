"""A WebSocket as Slack's Socket Mode needs one: text messages of bounded size, dead connections noticed. No Slack here.

``slack_sdk`` has a client too. It drops fragmented messages, speaks without TLS to any port but 443, knows no
``NO_PROXY``, and keeps a processor busy on a connection that was cut (docs/adr/0030). ``websockets`` does none of that.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Final
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import connect

from tidegauge.http.loopback import is_loopback

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Bound of one message; Slack's have some 50 kB at most."""
PING_EVERY_S: Final = 10.0
"""A connection that leaves a ping without an answer for twice as long is dead."""
CLOSE_WITHIN_S: Final = 1.0
_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # what the library says below that has the address, which holds a ticket


class WebSocketError(OSError):
    """The connection cannot be had, or is over. The message has no address: it may hold a ticket."""


class WebSocket:
    """One connection, directly or by the site's proxy (``HTTPS_PROXY``, ``NO_PROXY``). It pings by itself."""

    def __init__(self, url: str, *, timeout_s: float, ping_every_s: float = PING_EVERY_S) -> None:
        """Connect. Raises ``WebSocketError``."""
        parts = urlsplit(url)
        is_here = is_loopback(parts.hostname or "")
        if parts.scheme != "wss" and not (parts.scheme == "ws" and is_here):
            raise WebSocketError("the address is not wss://")
        self._open = ExitStack()
        try:
            self._connection = self._open.enter_context(
                connect(
                    url, proxy=None if is_here else True, open_timeout=timeout_s, ping_interval=ping_every_s,
                    ping_timeout=2 * ping_every_s, close_timeout=CLOSE_WITHIN_S, max_size=MAX_MESSAGE_BYTES,
                    compression=None, user_agent_header=None, logger=_log,
                )
            )  # fmt: skip
        except (OSError, EOFError, ImportError, ValueError, WebSocketException) as error:
            raise WebSocketError(_why(error)) from None  # the original names the address

    def receive(self, *, timeout_s: float) -> str | None:
        """The next text message; ``None`` after ``timeout_s`` without one. Raises ``WebSocketError`` at the end of the
        connection, and for what is no WebSocket or too long."""
        try:
            found = self._connection.recv(timeout=timeout_s)
        except TimeoutError:
            return None
        except (OSError, EOFError, ValueError, WebSocketException) as error:
            raise WebSocketError(_why(error)) from None
        if not isinstance(found, str):
            raise WebSocketError("a message of a kind that Slack does not send")
        return found

    def send(self, text: str) -> None:
        """Raises ``WebSocketError``."""
        try:
            self._connection.send(text)
        except (OSError, WebSocketException) as error:
            raise WebSocketError(_why(error)) from None

    def close(self) -> None:
        """Never raises."""
        try:
            self._open.close()
        except (OSError, WebSocketException):
            return


def _why(error: Exception) -> str:
    """The reason in words without an address: "Connection refused"."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionClosed):
        told = error.rcvd or error.sent
        return "the connection was cut" if told is None else f"the connection was closed ({int(told.code)})"
    if isinstance(error, ImportError):
        return f"the site's proxy needs the package {error.name or 'python-socks'}"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
