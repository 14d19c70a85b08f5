"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("3i")


class SocketPeer(NamedTuple):
    """The process that connected, or that called ``listen``."""

    pid: int
    uid: int


def peer_of(connection: socket.socket) -> SocketPeer:
    """By the kernel's word (SO_PEERCRED, unix(7)). Raises ``OSError``."""
    pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return SocketPeer(pid, uid)
