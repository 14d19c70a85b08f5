"""Slack's Socket Mode on a loopback port, as Slack documents it: hello, envelopes, acknowledgements, disconnect, pings.

It speaks WebSocket by itself, not with the code under test.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import struct
import threading
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer
from types import TracebackType
from typing import Any

from serving import Serving
from waiting import PATIENCE_S

GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE, PING, PONG = 0x1, 0x8, 0x9, 0xA


def frame(opcode: int, payload: bytes, *, last: bool = True) -> bytes:
    """A frame of a server, which masks nothing."""
    head = bytes([(0x80 if last else 0) | opcode])
    if len(payload) < 126:
        return head + bytes([len(payload)]) + payload
    size = struct.pack("!BH", 126, len(payload)) if len(payload) < 1 << 16 else struct.pack("!BQ", 127, len(payload))
    return head + size + payload


class FakeSocketMode:
    """The server; one connection at a time counts, the latest."""

    def __init__(self) -> None:
        self.greets = True
        """Whether a new connection gets its hello."""
        self.ends = False
        """Whether a new connection is told to go away right after its hello."""
        self.answers_pings = True
        self.connections = 0
        self.pongs = 0
        self.acknowledged: list[str] = []
        """Ids of envelopes, in order."""
        self._latest: socket.socket | None = None
        self._changed = threading.Condition()
        self._server = ThreadingTCPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._serving = Serving(self._server)

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._server.server_address[1]}/link/?ticket=secret-ticket&app_id=A0TIDEGAUGE"

    def __enter__(self) -> FakeSocketMode:
        self._serving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._serving.stop()
        self.cut()

    def wait_for_connection(self, count: int = 1) -> None:
        """Until so many connections were made, and the latest is there."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.connections >= count and self._latest is not None, PATIENCE_S), (
                f"{self.connections} connections"
            )

    def send(self, envelope_id: str, payload: object, *, kind: str = "interactive", pieces: int = 1) -> None:
        """An envelope, in so many frames."""
        body = json.dumps(
            {"type": kind, "envelope_id": envelope_id, "accepts_response_payload": False, "payload": payload}
        ).encode()
        size = -(-len(body) // pieces)
        parts = [body[at : at + size] for at in range(0, len(body), size)]
        for number, part in enumerate(parts):
            self.send_bytes(frame(TEXT if number == 0 else 0, part, last=number == len(parts) - 1))
            if number == 0 and len(parts) > 1:
                self.send_bytes(frame(PING, b"between"))

    def say(self, value: Any) -> None:
        self.send_bytes(frame(TEXT, (value if isinstance(value, str) else json.dumps(value)).encode()))

    def send_bytes(self, data: bytes) -> None:
        with self._changed:
            assert self._latest is not None, "nobody is connected"
            self._latest.sendall(data)

    def cut(self) -> None:
        """The connection ends without a word."""
        with self._changed:
            latest, self._latest = self._latest, None
        if latest is not None:
            with suppress(OSError):
                latest.shutdown(socket.SHUT_RDWR)
            latest.close()

    def wait_for_acknowledgement(self, envelope_id: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: envelope_id in self.acknowledged, PATIENCE_S), self.acknowledged

    def wait_for_pong(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.pongs > 0, PATIENCE_S)

    def serve(self, connection: socket.socket) -> None:
        """One connection, to its end."""
        if not _shake(connection):
            return
        with self._changed:
            self._latest = connection
            if self.greets:
                hello = {"type": "hello", "num_connections": 1, "connection_info": {"app_id": "A0TIDEGAUGE"}}
                connection.sendall(frame(TEXT, json.dumps(hello).encode()))
            if self.ends:
                connection.sendall(frame(TEXT, b'{"type": "disconnect", "reason": "refresh_requested"}'))
            self.connections += 1
            self._changed.notify_all()
        with suppress(OSError, struct.error):
            while (received := _receive(connection)) is not None:
                self._take(connection, *received)
        with self._changed:
            if self._latest is connection:
                self._latest = None

    def _take(self, connection: socket.socket, opcode: int, payload: bytes) -> None:
        with self._changed:
            if opcode == PING and self.answers_pings:
                connection.sendall(frame(PONG, payload))
            elif opcode == CLOSE:
                connection.sendall(frame(CLOSE, payload))
                connection.shutdown(socket.SHUT_RDWR)
            elif opcode == PONG:
                self.pongs += 1
            elif opcode == TEXT:
                self.acknowledged.append(json.loads(payload)["envelope_id"])
            self._changed.notify_all()


def _shake(connection: socket.socket) -> bool:
    head = b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(4096)
        if not piece:
            return False
        head += piece
    fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
    accept = base64.b64encode(hashlib.sha1((fields["Sec-WebSocket-Key"] + GUID).encode()).digest()).decode()
    connection.sendall(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
    )
    return True


def _receive(connection: socket.socket) -> tuple[int, bytes] | None:
    """A frame of a client: kind and payload."""
    head = _exactly(connection, 2)
    if head is None or not head[1] & 0x80:
        return None
    length = head[1] & 0x7F
    if length >= 126:
        (length,) = struct.unpack(
            "!H" if length == 126 else "!Q", _exactly(connection, 2 if length == 126 else 8) or b""
        )
    mask = _exactly(connection, 4) or b""
    body = _exactly(connection, length) or b""
    return head[0] & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = b""
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            return None
        found += piece
    return found


def _handler(fake: FakeSocketMode) -> type[BaseRequestHandler]:
    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                fake.serve(self.request)

    return Handler


def clicked(
    button: dict[str, Any], *, user: str, channel: str, ts: str, team: str = "T0ROSE", thread_ts: str | None = None,
    at: str = "1800000000.000100",
) -> dict[str, Any]:  # fmt: skip
    """The payload of a click on a button of a message, with the fields that Slack documents."""
    container = {"type": "message", "message_ts": ts, "channel_id": channel, "is_ephemeral": False}
    return {
        "type": "block_actions", "api_app_id": "A0TIDEGAUGE", "token": "verification",
        "user": {"id": user, "username": "somebody", "name": "somebody", "team_id": team},
        "team": {"id": team, "domain": "rose"}, "enterprise": None, "is_enterprise_install": False,
        "container": {**container, **({} if thread_ts is None else {"thread_ts": thread_ts})},
        "channel": {"id": channel, "name": "gpu-memory"}, "trigger_id": "1.2.abc",
        "response_url": "http://127.0.0.1:9/actions/nobody-posts-here",
        "actions": [{**button, "block_id": "b", "action_ts": at}],
    }  # fmt: skip


def buttons(blocks: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The buttons of a message by what they ask for."""
    found = [one for block in blocks if block["type"] == "actions" for one in block["elements"]]
    return {one["action_id"].removeprefix("tidegauge:"): one for one in found}
