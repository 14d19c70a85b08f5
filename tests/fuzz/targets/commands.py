"""Lines that somebody sends to a rank's command socket: the real socket, the real checks of each command's fields."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Mapping
from typing import Any

from fuzz.oracles import require
from fuzz.target import Target
from tidegauge.probe.requests import RequestRefusedError, is_a_look, parse_ask, request_id_of
from tidegauge.probe.run_files.command_socket import MAX_LINE_BYTES, MAX_REPLY_BYTES, CommandSocket
from tidegauge.probe.run_files.run_folder import open_run_folder
from tidegauge.probe.session.commands import OwnerMessages

MAX_SENT_BYTES = 4096
"""Bytes given to the socket at a time: a line comes in several pieces."""


MAX_ANSWERED_LINES = 50
"""Lines whose replies fit into the socket's buffer."""


def answer(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """In place of ``probe.session.commands``, whose table needs a watched process: its checks are the same
    functions."""
    name = request.get("command")
    try:
        if name == "checkpoint" and not is_a_look(request):
            ask = parse_ask(request)
            require(0 < len(ask.request_id) <= 200 and ask.ranks >= 1, f"{ask}")
        elif name in ("checkpoint", "checkpoint_status", "checkpoint_withdraw"):
            request_id_of(request)
        elif name == "tell":
            return OwnerMessages(_NOWHERE).tell(request)
    except RequestRefusedError as refused:
        return {"error": str(refused), "kind": refused.kind}
    return {"ok": True}


_NOWHERE = os.open(os.devnull, os.O_WRONLY)
_SCRATCH = tempfile.TemporaryDirectory()
_FOLDER = open_run_folder(_SCRATCH.name, uid=os.geteuid())
_SERVER = CommandSocket(_FOLDER, "1-2.sock", answer, allowed_uids=frozenset({os.geteuid()}))


def one(data: bytes) -> None:
    """Every whole line gets exactly one line of JSON, as long as none is too long; nothing else is ever sent."""
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(_SERVER.path)
        client.setblocking(False)
        _turn()
        got = b""
        for at in range(0, len(data), MAX_SENT_BYTES):
            try:
                client.sendall(data[at : at + MAX_SENT_BYTES])
            except (BrokenPipeError, ConnectionResetError):
                break
            _turn()
            got += _received(client)
        got += _received(client)
    _turn()
    require(len(_SERVER.descriptors()) == 1, "a connection that is over is kept")
    replies = got.split(b"\n")
    require(replies.pop() == b"", "half a reply")
    for reply in replies:
        said = json.loads(reply)
        require(isinstance(said, dict) and ("ok" in said or "error" in said), "a reply that is none")
        require(len(reply) < MAX_REPLY_BYTES, f"a reply of {len(reply):,} bytes")
    lines = data.split(b"\n")
    # Replies that the client does not read soon enough end the connection.
    require(len(replies) <= len(lines) + 1, f"{len(replies)} replies to {len(lines) - 1} lines")
    if len(lines) <= MAX_ANSWERED_LINES and all(len(line) <= MAX_LINE_BYTES - MAX_SENT_BYTES for line in lines):
        require(len(replies) == len(lines) - 1, f"{len(replies)} replies to {len(lines) - 1} lines")


def _turn() -> None:
    for descriptor in _SERVER.descriptors():
        _SERVER.serve(descriptor, now_s=0.0)


def _received(client: socket.socket) -> bytes:
    try:
        return client.recv(1 << 20)
    except (BlockingIOError, ConnectionResetError):
        return b""


def seeds() -> list[bytes]:
    ask = {"command": "checkpoint", "id": "7", "way": "callback", "at_step": 12, "deadline_unix_s": 2e9, "ranks": 4}
    requests: list[dict[str, object]] = [
        ask, {"command": "ping"}, {"command": "checkpoint_status", "id": "7"}, {"command": "fraction", "value": 0.5},
        {"command": "tell", "text": "the service is here", "id": "1"},
    ]  # fmt: skip
    lines = [json.dumps(request).encode() + b"\n" for request in requests]
    return [*lines, b"".join(lines), b"{" * 3000 + b"\n", b"x" * (MAX_LINE_BYTES + 100)]


_OWN = frozenset(
    {"socket.__new__", "socket.connect", "socket.bind", "socket.getpeername", "socket.setsockopt", "socket.getsockopt"}
)
WORDS = (
    b'{"command":"tell","text":"', b'"at_step":', b'"deadline_unix_s":', b"1e999", b"9" * 400, b"NaN", b"\n",
    b"\n{}\n", b"null", b'"ranks":', b"\xff\xfe", b"\\ud800", b"[" * 900, b'"way":"signal"', b'"id":"', b"true",
)  # fmt: skip
TARGET = Target(one, seeds, words=WORDS, most_bytes=16_384, allowed=_OWN)
