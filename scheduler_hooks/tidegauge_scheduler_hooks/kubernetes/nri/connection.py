"""A plugin's connection to the runtime: NRI's two channels in one Unix socket (github.com/containerd/nri/pkg/net), each
of which speaks ttrpc (github.com/containerd/ttrpc)."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.protobuf import field, messages, text
from tidegauge_scheduler_hooks.kubernetes.nri.messages import REGISTER, RUNTIME_SERVICE, registration

_logger = logging.getLogger(__name__)

NAME = "tidegauge"
INDEX = "90"
"""After plugins that hand in devices, so that their devices are seen."""
RETRY_S = 1.0
"""Between two connections: a runtime that starts again is back within seconds, and a try costs nothing."""
MAX_MESSAGE_BYTES = 4 << 20
"""As both protocols limit it."""
MAX_FRAME_BYTES = 4096
"""Of ours: a runtime reads a channel through a buffer of that length, and refuses a longer frame."""
_FRAME = struct.Struct(">II")
"""Channel, length."""
_HEADER = struct.Struct(">IIBB")
"""Length, stream, type, flags."""
_REMOTE_CLOSED = 1
"""Flag: no more comes in this stream."""


class Channel(IntEnum):
    """``PLUGIN``: the runtime asks, the plugin answers. ``RUNTIME``: the other way round."""

    PLUGIN = 1
    RUNTIME = 2


class MessageKind(IntEnum):
    """Of a message; there are others, which neither side uses here."""

    REQUEST = 1
    RESPONSE = 2


class NriError(Exception):
    """The runtime broke off, refuses the plugin, or speaks otherwise. Connect again later."""


class _Message(NamedTuple):
    channel: int
    stream: int
    kind: int
    content: bytes


Answer = Callable[[str, bytes], bytes]
"""Method and request to response. A refusal would fail the user's container, so there is none."""


def serve(connection: socket.socket, answer: Answer) -> None:
    """Register as a plugin, and answer until the runtime breaks off. Raises ``NriError``, ``OSError``."""
    register = field(1, RUNTIME_SERVICE) + field(2, REGISTER) + field(3, registration(NAME, INDEX))
    _send(connection, _Message(Channel.RUNTIME, 1, MessageKind.REQUEST, register))
    for message in _received(connection):
        if message.channel == Channel.PLUGIN and message.kind == MessageKind.REQUEST:
            response = answer(text(message.content, 2), b"".join(messages(message.content, 3)))
            _send(connection, _Message(Channel.PLUGIN, message.stream, MessageKind.RESPONSE, field(2, response)))
        elif message.channel == Channel.RUNTIME and message.kind == MessageKind.RESPONSE:
            for status in messages(message.content, 1):
                raise NriError(f"the runtime refuses the plugin: {text(status, 2)[:200]}")


def keep_serving(path: Path, answer: Answer, wait: Callable[[float], object]) -> None:
    """Serve the runtime at ``path``, again after each of its restarts; for ever, unless ``wait`` raises."""
    problem = None
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.connect(str(path))
                problem = None
                serve(connection, answer)
        except (OSError, ValueError, NriError) as error:
            if str(error) != problem:
                problem = str(error)
                _logger.warning("no container runtime asks: %s: %s; trying again", path, problem)
        wait(RETRY_S)


def _send(connection: socket.socket, message: _Message) -> None:
    flags = _REMOTE_CLOSED if message.kind == MessageKind.REQUEST else 0
    whole = _HEADER.pack(len(message.content), message.stream, message.kind, flags) + message.content
    parts = (whole[at : at + MAX_FRAME_BYTES] for at in range(0, len(whole), MAX_FRAME_BYTES))
    connection.sendall(b"".join(_FRAME.pack(message.channel, len(part)) + part for part in parts))


def _received(connection: socket.socket) -> Iterator[_Message]:
    """Whole messages, in the order in which their channels end them. A message may be in several frames, and a frame
    may have several."""
    waiting = {channel: bytearray() for channel in Channel}
    while True:
        number, length = _FRAME.unpack(_exactly(connection, _FRAME.size))
        if length > MAX_MESSAGE_BYTES + _HEADER.size:
            raise NriError(f"a frame of {length} bytes")
        frame = _exactly(connection, length)
        if number not in waiting:
            continue
        buffer = waiting[Channel(number)]
        buffer += frame
        while len(buffer) >= _HEADER.size:
            size, stream, kind, _ = _HEADER.unpack_from(buffer)
            if size > MAX_MESSAGE_BYTES:
                raise NriError(f"a message of {size} bytes")
            end = _HEADER.size + size
            if len(buffer) < end:
                break
            yield _Message(number, stream, kind, bytes(buffer[_HEADER.size : end]))
            del buffer[:end]


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 1 << 16))
        if not part:
            raise NriError("the runtime closed the connection")
        found += part
    return bytes(found)
