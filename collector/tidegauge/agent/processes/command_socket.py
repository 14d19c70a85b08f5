"""Sends a request to a process's command socket: a rank's probe, or the keeper of a ``tidegauge run`` (docs/probe.md).

Everybody may write below a run directory, and the agent may be root. So no link is followed: the folder and the socket
are opened as the very files that were checked, and nothing is sent until the kernel has confirmed that the intended
process listens there. Otherwise a user could make the agent talk to another daemon's socket.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.agent.opening.peers import peer_of
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.run_dirs.folders import UserFolder, opened_folder
from tidegauge.core.ids import ProcessId
from tidegauge.core.text import one_line
from tidegauge.osproc.processes import identity_of

MAX_REPLY_BYTES = 64 << 10
MAX_REPLY_TEXT_CHARS = 1000
"""Characters of each text in an answer."""
MAX_REPLY_DEPTH = 8
"""Of lists and objects in an answer; ours have three. What is much deeper could not be sent to the coordinator, and no
report of this node would arrive any more."""
MAX_REPLY_NUMBER = 1 << 62


class ProcessSocket(NamedTuple):
    """A process and the expected path of its socket: ``<folder>/<name>``."""

    folder: UserFolder
    uid: int
    """The kernel's owner of the process."""
    name: str
    process: ProcessId
    """As this node sees it; ``name`` may carry the pid that it has in its container."""


class NotAskedError(Exception):
    """No answer came. The message is for people; the request may have reached the process nevertheless."""


def ask(to: ProcessSocket, request: Mapping[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """The process's answer to one request: a JSON object, which may be ``{"error": …}``. Raises ``NotAskedError``."""
    who = f"pid {to.process.pid}"
    deadline_s = time.monotonic() + timeout_s
    try:
        with opened_folder(to.folder) as folder:
            connection = folder.connected(to.name, to.process, to.uid)
        with contextlib.closing(connection):
            _check_peer(connection, to)
            connection.settimeout(_left_s(deadline_s))
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = _read_line(connection, deadline_s)
    except FileNotFoundError:
        raise NotAskedError(f"{who} has no command socket: it has ended, or runs without Tidegauge's probe") from None
    except ConnectionRefusedError:
        raise NotAskedError(f"{who} no longer listens on its command socket: it has ended or is about to") from None
    except (TimeoutError, BlockingIOError):
        raise NotAskedError(f"{who} did not answer within {timeout_s:g} s") from None
    except UnsafeFileError as error:
        raise NotAskedError(f"{who} cannot be reached, nothing was sent: {error}") from error
    except OSError as error:
        raise NotAskedError(f"{who} cannot be reached: {error.strerror or error}") from error
    return _answer_in(line, who)


def _check_peer(connection: socket.socket, to: ProcessSocket) -> None:
    """Check which process called ``listen``, and that it still has its pid."""
    pid, uid = peer_of(connection)
    if (pid, uid) != (to.process.pid, to.uid):
        meant = f"pid {to.process.pid} of uid {to.uid}"
        raise NotAskedError(f"{to.name} is served by pid {pid} of uid {uid}, not by {meant}: nothing was sent")
    if identity_of(pid) != to.process:
        raise NotAskedError(f"pid {pid} is now another process: nothing was sent")


def _read_line(connection: socket.socket, deadline_s: float) -> bytes:
    received = b""
    while b"\n" not in received:
        connection.settimeout(_left_s(deadline_s))
        data = connection.recv(8192)
        if not data:
            raise NotAskedError("the process hung up without an answer")
        received += data
        if len(received) > MAX_REPLY_BYTES:
            raise NotAskedError(f"the answer is longer than {MAX_REPLY_BYTES} bytes")
    return received.split(b"\n", 1)[0]


def _answer_in(line: bytes, who: str) -> dict[str, Any]:
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise NotAskedError(f"{who} sent an answer that is not a JSON object")
    try:
        return {_line(name): _tame(value, MAX_REPLY_DEPTH) for name, value in answer.items()}
    except ValueError as error:
        raise NotAskedError(f"{who} sent an unusable answer: {error}") from None


def _tame(value: Any, depth: int) -> Any:
    """``value``, safe to send on, calculate with and show. Raises ``ValueError``."""
    if isinstance(value, str):
        return _line(value)
    if isinstance(value, (int, float)) and not -MAX_REPLY_NUMBER <= value <= MAX_REPLY_NUMBER:
        raise ValueError("a number is out of range")
    if not isinstance(value, (list, dict)):
        return value
    if depth <= 0:
        raise ValueError("it is nested too deeply")
    if isinstance(value, list):
        return [_tame(one, depth - 1) for one in value]
    return {_line(name): _tame(one, depth - 1) for name, one in value.items()}


def _line(text: str) -> str:
    """A bounded text without control characters: the process may be anybody's."""
    return one_line(text, MAX_REPLY_TEXT_CHARS, replacement=" ")


def _left_s(deadline_s: float) -> float:
    left_s = deadline_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError
    return left_s
