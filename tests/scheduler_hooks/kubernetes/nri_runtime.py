"""The runtime's side of NRI, for the plugin's tests: frames and messages as containerd writes them, by protobuf's own
library."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from protobuf_schema import BOOL, BYTES, INT32, INT64, STRING, message_maker

_SCHEMA: Mapping[str, Sequence[tuple[str, int, int | str]]] = {
    "Request": [("service", 1, STRING), ("method", 2, STRING), ("payload", 3, BYTES), ("timeout_nano", 4, INT64)],
    "Status": [("code", 1, INT32), ("message", 2, STRING)],
    "Response": [("status", 1, "Status"), ("payload", 2, BYTES)],
    "RegisterPluginRequest": [("plugin_name", 1, STRING), ("plugin_idx", 2, STRING)],
    "ConfigureResponse": [("events", 2, INT32)],
    "Synchronize": [("pods", 1, "PodSandbox"), ("more", 3, BOOL)],
    "SynchronizeResponse": [("more", 2, BOOL)],
    "Entry": [("key", 1, STRING), ("value", 2, STRING)],
    "PodSandbox": [
        ("id", 1, STRING), ("name", 2, STRING), ("uid", 3, STRING), ("namespace", 4, STRING), ("labels", 5, "Entry"),
        ("annotations", 6, "Entry"), ("pid", 9, INT64),
    ],
    "Mount": [("destination", 1, STRING), ("type", 2, STRING), ("source", 3, STRING), ("options", 4, STRING)],
    "Device": [("path", 1, STRING), ("major", 3, INT64)],
    "Linux": [("devices", 2, "Device")],
    "CDIDevice": [("name", 1, STRING)],
    "Container": [
        ("id", 1, STRING), ("name", 3, STRING), ("args", 7, STRING), ("env", 8, STRING), ("mounts", 9, "Mount"),
        ("linux", 11, "Linux"), ("created_at", 14, INT64), ("cdi_devices", 20, "CDIDevice"),
    ],
    "CreateContainerRequest": [("pod", 1, "PodSandbox"), ("container", 2, "Container")],
    "Adjustment": [("mounts", 3, "Mount"), ("env", 4, "Entry")],
    "CreateContainerResponse": [("adjust", 1, "Adjustment")],
}  # fmt: skip
_REPEATED = {"pods", "labels", "annotations", "options", "devices", "args", "env", "mounts", "cdi_devices"}
new = message_maker(_SCHEMA, _REPEATED)
PLUGIN, RUNTIME = 1, 2


def entries(of: Mapping[str, str]) -> list[Any]:
    return [new("Entry", key=name, value=value) for name, value in of.items()]


class NriRuntime:
    """``connection`` is the runtime's end. Everything that is sent is cut into frames of ``frame`` bytes."""

    def __init__(self, connection: socket.socket, *, frame: int = 4096) -> None:
        self._connection = connection
        self._frame = frame
        self._stream = -1
        self._unread = {PLUGIN: b"", RUNTIME: b""}

    def registered(self, *, refusal: str | None = None) -> Any:
        """The plugin's ``RegisterPluginRequest``, which is answered."""
        stream, kind, content = self._message(RUNTIME)
        request = new("Request").FromString(content)
        assert (kind, request.service, request.method) == (1, "nri.pkg.api.v1alpha1.Runtime", "RegisterPlugin")
        status = {} if refusal is None else {"status": new("Status", code=2, message=refusal)}
        self._send(RUNTIME, stream, 2, new("Response", **status))
        return new("RegisterPluginRequest").FromString(request.payload)

    def ask(self, method: str, request: Any, response: str) -> Any:
        """What the plugin answers."""
        self._stream += 2
        payload = request if isinstance(request, bytes) else request.SerializeToString()
        service = "nri.pkg.api.v1alpha1.Plugin"
        self._send(
            PLUGIN, self._stream, 1, new("Request", service=service, method=method, payload=payload, timeout_nano=9)
        )
        stream, kind, content = self._message(PLUGIN)
        answer = new("Response").FromString(content)
        assert (stream, kind, answer.HasField("status")) == (self._stream, 2, False), "a refusal fails the container"
        return new(response).FromString(answer.payload)

    def send_on(self, channel: int, content: bytes) -> None:
        for at in range(0, len(content), self._frame):
            part = content[at : at + self._frame]
            self._connection.sendall(struct.pack(">II", channel, len(part)) + part)

    def _send(self, channel: int, stream: int, kind: int, message: Any) -> None:
        content = message.SerializeToString()
        self.send_on(channel, struct.pack(">IIBB", len(content), stream, kind, 0) + content)

    def _message(self, channel: int) -> tuple[int, int, bytes]:
        while True:
            unread = self._unread[channel]
            if len(unread) >= 10:
                length, stream, kind, _ = struct.unpack(">IIBB", unread[:10])
                if len(unread) >= 10 + length:
                    self._unread[channel] = unread[10 + length :]
                    return stream, kind, unread[10 : 10 + length]
            number, size = struct.unpack(">II", self._exactly(8))
            assert size <= 4096, "containerd reads through a buffer of that length"
            self._unread[number] += self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        found = self._connection.recv(size, socket.MSG_WAITALL)
        assert len(found) == size, "the plugin hung up"
        return found
