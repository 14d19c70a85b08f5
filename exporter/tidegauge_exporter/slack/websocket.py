"""A WebSocket client (RFC 6455) as far as Slack's Socket Mode needs one: text messages of bounded size. No Slack here.

``slack_sdk`` has a client too. It drops fragmented messages, speaks without TLS to any port but 443, knows no
``NO_PROXY``, and keeps a processor busy on a connection that was cut (docs/adr/0030).
"""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from tidegauge.http.loopback import is_loopback

MAX_MESSAGE_BYTES: Final = 1024 * 1024
"""Bound of one message; Slack's have some 50 kB at most."""
MAX_CONTROL_BYTES: Final = 125
_GUID: Final = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_CONTINUATION, _TEXT, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x8, 0x9, 0xA
_PIECE_BYTES: Final = 16384


class WebSocketError(OSError):
    """The connection cannot be had, or is over. The message has no address: it may hold a ticket."""


class WebSocket:
    """One connection, for one thread."""

    def __init__(self, url: str, *, timeout_s: float, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """Connect. Raises ``WebSocketError``."""
        self._timeout_s = timeout_s
        self._monotonic_s = monotonic_s
        self._buffer = bytearray()
        self._parts = bytearray()
        self._is_in_parts = False
        self._heard_s = monotonic_s()
        try:
            self._socket, self._buffer = _connect(url, timeout_s)
        except (OSError, HTTPException) as error:
            raise WebSocketError(_why(error)) from None  # the original names the address

    @property
    def silent_s(self) -> float:
        """Seconds since the last byte."""
        return self._monotonic_s() - self._heard_s

    def receive(self, *, timeout_s: float) -> str | None:
        """The next text message; ``None`` after ``timeout_s`` without one. Answers pings. Raises ``WebSocketError`` at
        the end of the connection, and for what is no WebSocket or too long."""
        ends_s = self._monotonic_s() + timeout_s
        while True:
            frame = self._frame()
            if frame is not None:
                text = self._taken(*frame)
                if text is not None:
                    return text
            elif not self._read(ends_s - self._monotonic_s()):
                return None

    def send(self, text: str) -> None:
        """Raises ``WebSocketError``."""
        self._send(_TEXT, text.encode())

    def ping(self) -> None:
        """Raises ``WebSocketError``."""
        self._send(_PING, b"")

    def close(self) -> None:
        """Never raises."""
        with suppress(OSError):
            self._send(_CLOSE, struct.pack("!H", 1000))
        self._socket.close()

    def _taken(self, is_last: bool, opcode: int, payload: bytes) -> str | None:
        """What a frame completes: a message."""
        if opcode == _PING:
            self._send(_PONG, payload)
        elif opcode == _CLOSE:
            raise WebSocketError("the server closed the connection")
        elif opcode in (_TEXT, _CONTINUATION):
            if (opcode == _CONTINUATION) is not self._is_in_parts:
                raise WebSocketError("frames are out of order")
            self._parts += payload
            if len(self._parts) > MAX_MESSAGE_BYTES:
                raise WebSocketError("a message is too long to be one of Slack's")
            self._is_in_parts = not is_last
            if is_last:
                whole, self._parts = bytes(self._parts), bytearray()
                return whole.decode(errors="replace")
        elif opcode != _PONG:
            raise WebSocketError("a frame of a kind that Slack does not send")
        return None

    def _frame(self) -> tuple[bool, int, bytes] | None:
        """The next whole frame in the buffer: whether it is the last of its message, kind and payload."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        first, second = buffer[0], buffer[1]
        if first & 0x70 or second & 0x80:
            raise WebSocketError("a frame that no server may send")
        opcode, length, at = first & 0x0F, second & 0x7F, 2
        if length >= 126:
            at = 4 if length == 126 else 10
            if len(buffer) < at:
                return None
            (length,) = struct.unpack("!H" if at == 4 else "!Q", buffer[2:at])
        if length > (MAX_CONTROL_BYTES if opcode >= _CLOSE else MAX_MESSAGE_BYTES):
            raise WebSocketError("a message is too long to be one of Slack's")
        if len(buffer) < at + length:
            return None
        payload = bytes(buffer[at : at + length])
        del buffer[: at + length]
        return bool(first & 0x80), opcode, payload

    def _read(self, within_s: float) -> bool:
        """Read some bytes; false: none came in time."""
        if within_s <= 0:
            return False
        self._socket.settimeout(within_s)
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except TimeoutError:
            return False
        except OSError as error:
            raise WebSocketError(_why(error)) from None
        if not piece:
            raise WebSocketError("the connection was cut")
        self._heard_s = self._monotonic_s()
        self._buffer += piece
        return True

    def _send(self, opcode: int, payload: bytes) -> None:
        """A frame, masked, as all of a client are."""
        mask, size = os.urandom(4), len(payload)
        head = bytes([0x80 | opcode])
        if size < 126:
            head += bytes([0x80 | size])
        else:
            head += struct.pack("!BH", 0x80 | 126, size) if size < 1 << 16 else struct.pack("!BQ", 0x80 | 127, size)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self._socket.settimeout(self._timeout_s)
        try:
            self._socket.sendall(head + mask + masked)
        except OSError as error:
            raise WebSocketError(_why(error)) from None


def _connect(url: str, timeout_s: float) -> tuple[socket.socket, bytearray]:
    """A connection after the handshake, and the bytes that came with it. Raises ``OSError`` and ``HTTPException``."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_here = is_loopback(host)
    if parts.scheme != "wss" and not (parts.scheme == "ws" and is_here):
        raise WebSocketError("the address is not wss://")
    connection = http_connection(host, parts.port, is_tls=parts.scheme == "wss", is_here=is_here, timeout_s=timeout_s)
    connection.connect()
    found = connection.sock
    assert isinstance(found, socket.socket), "it is connected"
    try:
        key = base64.b64encode(os.urandom(16)).decode()
        path = f"{parts.path or '/'}{'?' if parts.query else ''}{parts.query}"
        found.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        return found, _shaken(found, key)
    except BaseException:
        found.close()
        raise


def _shaken(connection: socket.socket, key: str) -> bytearray:
    """Read the server's answer to the handshake; returns the bytes after it."""
    received = bytearray()
    while b"\r\n\r\n" not in received:
        piece = connection.recv(_PIECE_BYTES)
        if not piece or len(received) > 4 * _PIECE_BYTES:
            raise WebSocketError("the server does not speak WebSocket")
        received += piece
    head, _, rest = bytes(received).partition(b"\r\n\r\n")
    status, *lines = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    expected = base64.b64encode(hashlib.sha1(f"{key}{_GUID}".encode()).digest()).decode()
    if status.split(" ")[1:2] != ["101"] or fields.get("sec-websocket-accept") != expected:
        raise WebSocketError("the server refuses the connection")
    return bytearray(rest)


def http_connection(host: str, port: int | None, *, is_tls: bool, is_here: bool, timeout_s: float) -> HTTPConnection:
    """A connection that is not open yet: directly, or by the site's proxy unless ``NO_PROXY`` excludes the host."""
    if not is_tls:
        return HTTPConnection(host, port or 80, timeout=timeout_s)
    proxy = None if is_here or proxy_bypass(host) else getproxies().get("https")
    context = ssl.create_default_context()
    if not proxy:
        return HTTPSConnection(host, port or 443, timeout=timeout_s, context=context)
    via = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = HTTPSConnection(via.hostname or "", via.port or 80, timeout=timeout_s, context=context)
    headers = {}
    if via.username is not None:
        name = f"{unquote(via.username)}:{unquote(via.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {base64.b64encode(name.encode()).decode()}"
    connection.set_tunnel(host, port or 443, headers)
    return connection


def _why(error: OSError | HTTPException) -> str:
    """The reason in words without an address: "Connection refused"."""
    if isinstance(error, WebSocketError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
