"""Messages between the agent and its opener, a process with root's rights: one packet each way on a Unix socket.

Both are fixed layouts. A request names a kind, numbers, and at most one component of a path; the rest of the packet is
pids, or the content of a settings file. A reply is an error number, the reason of a refusal, or numbers, and carries at
most one descriptor.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.core.jobs.settings import MAX_FILE_BYTES, settings_name
from tidegauge.core.run_dirs import process_of

VERSION = 2
MAX_PIDS = 1024
"""Of one ``MOUNT_NAMESPACES``."""
_REQUEST = struct.Struct("<BBBBIIQQQ80s")
_REPLY = struct.Struct("<BBHQ2Qq4Q")
MAX_REQUEST_BYTES = _REQUEST.size + MAX_FILE_BYTES
MAX_REPLY_BYTES = _REPLY.size + 8 * MAX_PIDS
_ENTRY = struct.Struct("<IQqII")
_STATUS = struct.Struct("<dQQdI")
MAX_ENTRIES = 8 * MAX_PIDS // _ENTRY.size
"""Uids of one ``RUN_DIR``: a container has few users."""
MAX_NAMES = 1 << 14
"""Of one ``RUN_DIR`` that are gone through."""
NAMES_EACH = 8 * MAX_PIDS // 256
"""Of one ``LIST``: the longest have 255 bytes."""
MAX_TEXT_BYTES = 1000
_OWN_ERRORS = ((ProcessLookupError, errno.ESRCH), (FileNotFoundError, errno.ENOENT))
"""Numbers of those that this package raises itself, without one."""
_COMPONENT = re.compile(r"[A-Za-z0-9._-]{1,80}")


class Kind(IntEnum):
    """What is asked for."""

    RUN_DIRS = 1
    """The paths of the run directories that it serves; others are asked for by their place in that list."""
    ENTER = 2
    """Hold a process's mount namespace, until ``LEAVE``."""
    RUN_DIR = 3
    """What is in a run directory of the namespace that is held (``EntryOfRunDir``), and how many names it has."""
    FOLDER = 4
    """Hold a user's folder, until ``LEAVE``; its owner, and the signature of its run directory."""
    LOOK = 5
    """The signature of a name in the folder that is held; so do all up to ``LEAVE``."""
    OPEN = 6
    CONNECT = 7
    DELETE = 8
    """The file with this device and inode."""
    DELETE_BESIDE = 9
    """A socket, or a regular file, of the folder's owner."""
    LEAVE = 10
    MOUNT_NAMESPACES = 11
    USER_NAMESPACE = 12
    """Who made it."""
    SMAPS_ROLLUP = 13
    MAKE_SETTINGS = 14
    WRITE_SETTINGS = 15
    DELETE_SETTINGS = 16
    LIST = 17
    """Names in the folder that is held, at most ``NAMES_EACH``, NUL between them; ``is_inside``: the next ones. None:
    it has no more."""
    KUBELET = 18
    """A connection to the kubelet's pod-resources socket, whose path is the opener's own."""
    STATUS = 19
    """How it fares (``OpenerStatus``). The one request that root may make, too."""


class OpenerRequest(NamedTuple):
    """What the opener is asked. Fields that a kind does not use are 0 or empty."""

    kind: Kind
    run_dir: int = 0
    """Its place in the answer to ``RUN_DIRS``."""
    is_inside: bool = False
    """In the mount namespace that is held; for ``DELETE_BESIDE``: a socket."""
    uid: int = 0
    pid: int = 0
    start_ticks: int = 0
    device: int = 0
    inode: int = 0
    """Of a file or of a mount namespace."""
    name: str = ""
    tail: bytes = b""


class OpenerReply(NamedTuple):
    """What it answers."""

    value: int = 0
    signature: Signature | None = None
    tail: bytes = b""


class OpenerStatus(NamedTuple):
    """How the opener fares. Counts are those since its start."""

    runs_for_s: float
    refused_connections: int
    """Of users that it does not answer, and for want of a place."""
    refused_requests: int
    """Outside its rules, or for what is not the file that it has to be."""
    longest_act_s: float
    """For how long the longest request of now has been carried out; 0: there is none."""
    uid: int
    """The agent's user, as it was told: nobody else is served."""
    run_dirs: tuple[str, ...]
    """That it opens files in."""


class EntryOfRunDir(NamedTuple):
    """A name in a run directory that is a uid. No descriptor of the run directory is handed over: by ".." it would lead
    to all that everybody may read in the container."""

    uid: int
    inode: int
    mtime_ns: int
    mode: int
    """0: something is mounted there."""
    owner: int


class WireError(Exception):
    """It is no message of this version."""


def encode_request(request: OpenerRequest) -> bytes:
    kind, run_dir, is_inside, uid, pid, ticks, device, inode, name, tail = request
    return _REQUEST.pack(VERSION, kind, run_dir, is_inside, uid, pid, ticks, device, inode, name.encode()) + tail


def decode_request(data: bytes) -> OpenerRequest:
    """Raises ``WireError``."""
    if not _REQUEST.size <= len(data) <= MAX_REQUEST_BYTES:
        raise WireError(f"{len(data)} bytes")
    version, kind, run_dir, is_inside, uid, pid, ticks, device, inode, name = _REQUEST.unpack_from(data)
    try:
        component = name.rstrip(b"\0").decode("ascii")
        if version != VERSION or is_inside > 1 or (component and not is_component(component)):
            raise WireError(f"version {version}, name {component[:80]!r}")
        tail = data[_REQUEST.size :]
        return OpenerRequest(Kind(kind), run_dir, bool(is_inside), uid, pid, ticks, device, inode, component, tail)
    except ValueError as error:  # UnicodeDecodeError is one
        raise WireError(str(error)) from error


def is_component(name: str) -> bool:
    """Whether it may be one component of a path, as far as any kind of request goes."""
    return _COMPONENT.fullmatch(name) is not None and bool(name.strip("."))


def is_of_a_process(name: str) -> bool:
    """Whether it is one of the names that probes and ``tidegauge run`` give their files."""
    return is_component(name) and process_of(name) is not None


def is_of_settings(name: str) -> bool:
    """Whether it is the name of a settings file."""
    return is_component(name) and settings_name(name.removesuffix(".json")) == name


def encode_reply(reply: OpenerReply) -> bytes:
    numbers = reply.signature or (0,) * len(Signature._fields)
    return _REPLY.pack(VERSION, 0, 0, reply.value, *numbers) + reply.tail


def encode_status(status: OpenerStatus) -> bytes:
    run_dirs = b"\0".join(map(os.fsencode, status.run_dirs))
    return _STATUS.pack(*status[:-1]) + run_dirs


def decode_status(tail: bytes) -> OpenerStatus:
    """Raises ``WireError``."""
    if len(tail) < _STATUS.size:
        raise WireError(f"{len(tail)} bytes of status")
    runs_for_s, connections, requests, longest_act_s, uid = _STATUS.unpack_from(tail)
    run_dirs = tuple(map(os.fsdecode, tail[_STATUS.size :].split(b"\0")))
    return OpenerStatus(runs_for_s, connections, requests, longest_act_s, uid, run_dirs)


def encode_entries(entries: Iterable[EntryOfRunDir]) -> bytes:
    return b"".join(_ENTRY.pack(*entry) for entry in entries)


def decode_entries(tail: bytes) -> list[EntryOfRunDir]:
    """Raises ``WireError``."""
    if len(tail) % _ENTRY.size:
        raise WireError(f"{len(tail)} bytes of entries")
    return [EntryOfRunDir(*row) for row in _ENTRY.iter_unpack(tail)]


def encode_error(error: OSError | UnsafeFileError) -> bytes:
    zeros = (0,) * (1 + len(Signature._fields))
    if isinstance(error, UnsafeFileError):
        text = f"{error.reason}\0{error}".encode(errors="replace")[:MAX_TEXT_BYTES]
        return _REPLY.pack(VERSION, 2, 0, *zeros) + text
    number = error.errno or next((number for kind, number in _OWN_ERRORS if isinstance(error, kind)), errno.EIO)
    return _REPLY.pack(VERSION, 1, number, *zeros)


def decode_reply(data: bytes) -> OpenerReply:
    """Raises what the opener says has happened: ``UnsafeFileError``, ``OSError``; and ``WireError``."""
    if not _REPLY.size <= len(data) <= MAX_REPLY_BYTES:
        raise WireError(f"{len(data)} bytes")
    version, status, number, value, *numbers = _REPLY.unpack_from(data)
    tail = data[_REPLY.size :]
    if version != VERSION or status > 2:
        raise WireError(f"version {version}, status {status}")
    if status == 1:
        raise OSError(number, "the opener was refused it")
    if status == 2:
        reason, _, why = tail.decode(errors="replace").partition("\0")
        raise UnsafeFileError(reason, why)
    return OpenerReply(value, Signature(*numbers), tail)


def receive(connection: socket.socket, most_bytes: int) -> tuple[bytes, list[int]]:
    """One packet and the descriptors with it, which the caller closes; empty at the end. Raises ``OSError`` and
    ``WireError`` for a longer one."""
    data, descriptors, flags, _ = socket.recv_fds(connection, most_bytes, 1, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        for descriptor in descriptors:
            os.close(descriptor)
        raise WireError(f"longer than {most_bytes} bytes")
    return data, descriptors
