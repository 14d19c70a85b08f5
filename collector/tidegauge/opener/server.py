"""Serves the agent on a Unix socket: one thread a connection, each request checked and bounded.

A thread a connection, as one act may wait (a process that is about to run a program from a dead file system holds the
lock of its own memory): the agent's other threads go on.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import stat
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tidegauge.agent.opening.peers import peer_of
from tidegauge.agent.opening.safe_files import UnsafeFileError
from tidegauge.agent.opening.wire import (
    MAX_REQUEST_BYTES,
    Kind,
    OpenerReply,
    OpenerStatus,
    WireError,
    decode_request,
    encode_error,
    encode_reply,
    encode_status,
    receive,
)
from tidegauge.opener.acts import NotByRulesError, OpenerActs
from tidegauge.opener.places import MAX_CONNECTIONS, ConnectionPlaces, ServedConnection, is_unread
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)

MAX_REQUESTS_PER_S = 10_000
"""Of all connections; what is more waits. A thousand ranks ask some 1,600 times a second."""
MAX_KUBELET_CONNECTIONS_PER_S = 1
"""The agent asks for one in ten seconds; the kubelet keeps each for as long as its client does."""
HOLD_S = 30.0
"""How long a connection may hold a folder without a word: what is held open keeps a container's memory."""
SEND_S = 10.0
"""How long a client may leave an answer unread."""
_SEND_TIMEOUT = struct.pack("@ll", int(SEND_S), 0)
ROOT = 0
"""May ask for the status: ``tidegauge status`` is often root's."""


class RequestPace:
    """A bound for requests a second. For any thread."""

    def __init__(self, per_s: float = MAX_REQUESTS_PER_S) -> None:
        self._per_s = per_s
        self._next_s = 0.0
        self._lock = threading.Lock()

    def wait_s(self, now_s: float) -> float:
        """Seconds to wait before the next request is carried out. Up to a second's requests are free."""
        with self._lock:
            self._next_s = max(self._next_s, now_s - 1.0) + 1.0 / self._per_s
            return max(0.0, self._next_s - now_s)


class OpenerServer:
    """Accepts connections of one user on ``listener``. ``kubelet``: where its pod-resources socket is."""

    def __init__(self, listener: socket.socket, uid: int, run_dirs: Sequence[Path], kubelet: Path) -> None:
        self._listener = listener
        self._uid = uid
        self._run_dirs = tuple(run_dirs)
        self._kubelet = kubelet
        self._pace = RequestPace()
        self._kubelet_pace = RequestPace(MAX_KUBELET_CONNECTIONS_PER_S)
        self._places = ConnectionPlaces()
        self._few_lines = FewLines(_log)
        self._began_s = time.monotonic()
        self._refused: Counter[str] = Counter()
        self._counting = threading.Lock()

    def serve(self) -> None:
        """Until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(0.1)  # out of descriptors
                continue
            if (peer := peer_of(connection)).uid not in (self._uid, ROOT):
                self._refuse(connection, f"it is of uid {peer.uid}")
            elif (place := self._places.take(connection, peer.pid)) is None:
                self._refuse(connection, f"all places are taken, for one of pid {peer.pid}")
            else:
                is_agent = peer.uid == self._uid
                threading.Thread(target=self._serve_one, args=(place, is_agent), daemon=True).start()

    def _refuse(self, connection: socket.socket, why: str) -> None:
        connection.close()
        self._count("connection")
        self._few_lines.say(logging.WARNING, "refused a connection: %s", why, now_s=time.monotonic())

    def _count(self, refused: str) -> None:
        with self._counting:
            self._refused[refused] += 1

    def _status(self, place: ServedConnection) -> OpenerReply:
        """``place``: whose request for it is being carried out."""
        status = OpenerStatus(
            runs_for_s=time.monotonic() - self._began_s,
            refused_connections=self._refused["connection"],
            refused_requests=self._refused["request"],
            longest_act_s=self._places.longest_act_s(besides=place),
            uid=self._uid,
            run_dirs=tuple(map(str, self._run_dirs)),
        )
        return OpenerReply(tail=encode_status(status))

    def _serve_one(self, place: ServedConnection, is_agent: bool) -> None:
        connection = place.connection
        acts = OpenerActs(self._run_dirs, self._kubelet)
        try:
            with connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
                try:
                    while self._answer_next(place, acts, is_agent=is_agent):
                        pass
                finally:
                    acts.let_go()
                    _wait_for_the_rest(connection)
        except WireError as error:
            self._count("request")
            _log.debug("a connection ended: %s", error)
        except OSError as error:
            _log.debug("a connection ended: %s", error)
        finally:
            acts.let_go()
            self._places.give_back(place)

    def _answer_next(self, place: ServedConnection, acts: OpenerActs, *, is_agent: bool) -> bool:
        """Whether there may be more. Raises ``OSError`` and ``WireError``; then the connection is of no more use."""
        connection = place.connection
        _set_receive_timeout(connection, HOLD_S if acts.holds_something else 0.0)
        data, descriptors = receive(connection, MAX_REQUEST_BYTES)
        for unwanted in descriptors:
            os.close(unwanted)
        if not data or descriptors or is_unread(connection):
            return False
        request = decode_request(data)
        if not is_agent and request.kind is not Kind.STATUS:
            raise WireError(f"root asks for {request.kind.name}")
        self._places.now(place, is_busy=True)
        pace = self._kubelet_pace if request.kind is Kind.KUBELET else self._pace
        wait_s = pace.wait_s(time.monotonic())
        if wait_s > 0:
            time.sleep(wait_s)
        descriptor = None
        try:
            try:
                if request.kind is Kind.STATUS:
                    reply = self._status(place)
                else:
                    reply, descriptor = acts.act(request)
                answer = encode_reply(reply)
            except (OSError, UnsafeFileError) as error:
                if isinstance(error, (NotByRulesError, UnsafeFileError)):
                    self._count("request")
                answer = encode_error(error)
            socket.send_fds(connection, [answer], [] if descriptor is None else [descriptor])
        finally:
            if descriptor is not None:
                os.close(descriptor)
            self._places.now(place, is_busy=False)
        return True


def listening(path: Path, group: int) -> socket.socket:
    """A socket at ``path``, in a folder of root's, for members of ``group`` alone. The folder is made where it is
    missing, so that it may be in one that others can write to. Raises ``OSError``."""
    with suppress(FileExistsError):
        path.parent.mkdir(mode=0o750)
    folder = path.parent.lstat()
    if not stat.S_ISDIR(folder.st_mode) or folder.st_uid != 0 or folder.st_mode & 0o022:
        raise PermissionError(errno.EPERM, f"{path.parent} has to be root's, and writable for nobody else")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        with suppress(FileNotFoundError):
            path.unlink()
        before, egid = os.umask(0o117), os.getegid()
        try:
            if egid != group:
                os.setegid(group)
            listener.bind(str(path))
        finally:
            os.umask(before)
            if egid != group:
                os.setegid(egid)
        listener.listen(MAX_CONNECTIONS)
    except BaseException:
        listener.close()
        raise
    return listener


def _wait_for_the_rest(connection: socket.socket) -> None:
    """Keep the place of a client that has an answer unread, until it hangs up: the kernel counts descriptors on their
    way to all processes of root's (``RLIMIT_NOFILE`` in unix(7)), and refuses them more. Raises ``OSError``."""
    connection.shutdown(socket.SHUT_WR)
    if is_unread(connection):
        hung_up = select.poll()
        hung_up.register(connection, 0)
        hung_up.poll()


def _set_receive_timeout(connection: socket.socket, seconds: float) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("@ll", int(seconds), 0))
