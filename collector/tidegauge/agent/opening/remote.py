"""Acts on other users' files and processes by way of the opener, a process that has the rights (ADR 33).

A connection that holds a folder or a namespace belongs to whoever does; others take another one.
"""

from __future__ import annotations

import errno
import os
import socket as sockets
import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.local import LOCAL, MAX_SMAPS_BYTES
from tidegauge.agent.opening.peers import peer_of
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.opening.safe_files import Signature, UnsafeFileError
from tidegauge.agent.opening.wire import (
    MAX_PIDS,
    MAX_REPLY_BYTES,
    EntryOfRunDir,
    Kind,
    OpenerReply,
    OpenerRequest,
    WireError,
    decode_entries,
    decode_reply,
    encode_request,
    is_of_a_process,
    receive,
)
from tidegauge.core.ids import ProcessId

ANSWER_S = 2.0
"""An answer takes some 0.1 ms. After this long the opener is asked whether it answers at all."""
PING_S = 1.0
"""For that answer."""
PATIENCE_S = 20.0
"""For one answer of an opener that answers others: longer than a pause for too many requests."""
MAX_IDLE = 32
"""Connections kept for later."""


class OpenerAwayError(OSError):
    """The opener does not answer, or is another version: what it was asked for is unknown."""

    def __init__(self, why: object) -> None:
        super().__init__(errno.ECOMM, f"the opener does not answer: {why}")


def connected_to_root(path: Path) -> sockets.socket:
    """A connection to the socket of a process of root's. Raises ``OSError``."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET | sockets.SOCK_CLOEXEC)
    try:
        # By the kernel's time limit: with one of Python's, connect(2) would not wait while the queue is full.
        connection.setsockopt(sockets.SOL_SOCKET, sockets.SO_SNDTIMEO, struct.pack("@ll", int(ANSWER_S), 0))
        connection.connect(str(path))
        if (peer := peer_of(connection)).uid != 0:
            raise PermissionError(errno.EPERM, f"uid {peer.uid} listens there, not root")
    except BaseException:
        connection.close()
        raise
    return connection


class OpenerConnection:
    """One connection to the opener. For one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        is_awake: Callable[[], bool] = lambda: True,
        connect: Callable[[Path], sockets.socket] = connected_to_root,
    ) -> None:
        """``is_awake``: whether the opener answers others, asked when an answer is late. Raises
        ``OpenerAwayError``."""
        self._is_awake = is_awake
        try:
            self._socket = connect(path)
        except OSError as error:
            raise OpenerAwayError(error) from error

    def ask(self, request: OpenerRequest) -> tuple[OpenerReply, int | None]:
        """The answer, and a descriptor that the caller closes. Raises what the opener met: ``UnsafeFileError``,
        ``OSError``; ``OpenerAwayError`` leaves the connection of no more use."""
        try:
            self.send(request)
            data, descriptors = self._received()
        except (OSError, WireError) as error:
            self.close()  # the answer to this request must not pass for one to the next
            raise OpenerAwayError(error) from error
        try:
            if not data:
                raise OpenerAwayError("it has hung up")
            reply = decode_reply(data)
        except WireError as error:
            _close(descriptors)
            raise OpenerAwayError(error) from error
        except BaseException:
            _close(descriptors)
            raise
        return reply, descriptors[0] if descriptors else None

    def send(self, request: OpenerRequest) -> None:
        """Send a request without waiting for its answer. Raises ``OSError``."""
        self._socket.settimeout(ANSWER_S)
        self._socket.sendall(encode_request(request))

    def has_answered(self, wait_s: float) -> bool:
        """Whether an answer comes within ``wait_s``. Raises ``OSError`` and ``WireError``, also when the opener has
        hung up."""
        self._socket.settimeout(wait_s)
        try:
            data, descriptors = receive(self._socket, MAX_REPLY_BYTES)
        except (TimeoutError, BlockingIOError):
            return False
        _close(descriptors)
        if not data:
            raise OpenerAwayError("it has hung up")
        return True

    def _received(self) -> tuple[bytes, list[int]]:
        try:
            return receive(self._socket, MAX_REPLY_BYTES)
        except TimeoutError:
            if not self._is_awake():
                raise
        self._socket.settimeout(PATIENCE_S)  # this one act waits, for a process or a disk
        return receive(self._socket, MAX_REPLY_BYTES)

    def descriptor(self, request: OpenerRequest) -> tuple[OpenerReply, int]:
        """The answer to a request for a descriptor. Failures as for ``ask``."""
        reply, descriptor = self.ask(request)
        if descriptor is None:
            raise OpenerAwayError("it sent no descriptor")
        return reply, descriptor

    def close(self) -> None:
        self._socket.close()


class RemoteFolder(NamedTuple):
    """The ``OpenFolder`` that a connection holds."""

    opener: RemoteOpener
    connection: OpenerConnection
    uid: int

    def __enter__(self) -> RemoteFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.opener.leave(self.connection)

    def names(self, most: int) -> list[str]:
        names: list[str] = []
        while len(names) < most:
            reply, _ = self.connection.ask(OpenerRequest(Kind.LIST, is_inside=bool(names)))
            if not reply.tail:
                break
            names += [os.fsdecode(name) for name in reply.tail.split(b"\0")]
        return names[:most]

    def look_at(self, name: str) -> Signature:
        reply, _ = self.connection.ask(OpenerRequest(Kind.LOOK, name=_checked(name)))
        assert reply.signature is not None, "decode_reply makes one"
        return reply.signature

    def open_checked(self, name: str) -> tuple[int, Signature]:
        reply, descriptor = self.connection.descriptor(OpenerRequest(Kind.OPEN, name=_checked(name)))
        assert reply.signature is not None, "decode_reply makes one"
        return descriptor, reply.signature

    def connected(self, name: str, process: ProcessId, uid: int) -> sockets.socket:
        request = OpenerRequest(
            Kind.CONNECT, uid=uid, pid=process.pid, start_ticks=process.start_ticks, name=_checked(name)
        )
        _, descriptor = self.connection.descriptor(request)
        return sockets.socket(fileno=descriptor)

    def delete(self, name: str, signature: Signature, *, socket: str, files: Collection[str]) -> None:
        own = OpenerRequest(Kind.DELETE, device=signature.device, inode=signature.inode, name=_checked(name))
        beside = [OpenerRequest(Kind.DELETE_BESIDE, is_inside=True, name=socket)]
        beside += [OpenerRequest(Kind.DELETE_BESIDE, name=file) for file in files]
        for request in (own, *beside):
            with suppress(FileNotFoundError, UnsafeFileError):
                self.connection.ask(request)


class ListedRunDir(NamedTuple):
    """The ``OpenRunDir`` of a container, as the opener found it."""

    opener: RemoteOpener
    way_in: OpenerRequest
    path: Path
    signature: Signature
    entries: Mapping[str, EntryOfRunDir]
    """By name."""
    number: int
    """Of names, at least."""

    def __enter__(self) -> ListedRunDir:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def identity(self) -> tuple[int, int]:
        return self.signature.device, self.signature.inode

    def uids(self, most: int) -> tuple[dict[str, int], int]:
        return {name: entry.inode for name, entry in self.entries.items()}, min(self.number, most)

    def look_at(self, name: str) -> Signature:
        entry = self.entries.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "it was not there")
        if entry.mode == 0:
            raise UnsafeFileError("mount", "something is mounted there")
        return Signature(self.signature.device, entry.inode, entry.mtime_ns, 0, entry.mode, entry.owner, 1)

    def folder(self, uid: int) -> RemoteFolder:
        return self.opener.folder_inside(self.way_in, self.path, uid, self.identity)


class RemoteNamespace(NamedTuple):
    """The ``EnteredNamespace`` that a connection holds."""

    opener: RemoteOpener
    connection: OpenerConnection
    way_in: OpenerRequest

    def open(self, path: Path) -> ListedRunDir:
        reply, _ = self.connection.ask(OpenerRequest(Kind.RUN_DIR, self.opener.number_of(path)))
        assert reply.signature is not None, "decode_reply makes one"
        try:
            entries = {str(entry.uid): entry for entry in decode_entries(reply.tail)}
        except WireError as error:
            raise OpenerAwayError(error) from error
        return ListedRunDir(self.opener, self.way_in, path, reply.signature, entries, reply.value)


class RemoteOpener:
    """The ``Opener`` behind the socket ``path``. Connects when it is first asked, and anew whenever it has to; until
    then everything raises ``OpenerAwayError``.

    An opener that leaves a request without an answer is sent a ping. Until it answers that, nobody waits for it:
    everything raises ``OpenerAwayError`` at once."""

    def __init__(
        self,
        path: Path,
        run_dirs: Collection[Path] = (),
        *,
        connect: Callable[[Path], sockets.socket] = connected_to_root,
    ) -> None:
        """``run_dirs``: those that ``check`` is to find in the opener's list."""
        self._path = path
        self._run_dirs = run_dirs
        self._connect = connect
        self._idle: list[OpenerConnection] = []
        self._lock = threading.Lock()
        self._ping: OpenerConnection | None = None
        """By which an answer is missing."""
        self._pinging = threading.Lock()
        self._numbers: dict[Path, int] = {}
        """Places of the run directories in the opener's list."""

    def check(self) -> None:
        self._ask_run_dirs()
        for path in self._run_dirs:
            if path not in self._numbers:
                raise FileNotFoundError(errno.ENOENT, _not_served(path))

    def host_folder(self, run_dir: int, path: Path, uid: int) -> RemoteFolder:
        connection = self._begun(OpenerRequest(Kind.LEAVE))
        status = os.fstat(run_dir)
        folder = OpenerRequest(Kind.FOLDER, self.number_of(path), uid=uid)
        return self._folder(connection, folder, (status.st_dev, status.st_ino))

    def folder_inside(self, way_in: OpenerRequest, path: Path, uid: int, run_dir: tuple[int, int]) -> RemoteFolder:
        """``ListedRunDir.folder``, by a request to enter and the run directory's identity."""
        try:
            connection = self._begun(way_in)
        except ProcessLookupError:
            raise FileNotFoundError(errno.ENOENT, f"{path} is gone") from None
        folder = OpenerRequest(Kind.FOLDER, self.number_of(path), is_inside=True, uid=uid)
        return self._folder(connection, folder, run_dir)

    @contextmanager
    def entered(self, process: ProcessId, mount_namespace: int) -> Iterator[RemoteNamespace]:
        way_in = OpenerRequest(Kind.ENTER, pid=process.pid, start_ticks=process.start_ticks, inode=mount_namespace)
        connection = self._begun(way_in)
        try:
            yield RemoteNamespace(self, connection, way_in)
        finally:
            self.leave(connection)

    def mount_namespace(self, pid: int) -> int:
        (inode,) = self.mount_namespaces([pid])
        if inode is None:
            raise ProcessLookupError(errno.ESRCH, f"pid {pid} has ended")
        return inode

    def mount_namespaces(self, pids: Sequence[int]) -> Sequence[int | None]:
        found: list[int | None] = []
        for at in range(0, len(pids), MAX_PIDS):
            some = pids[at : at + MAX_PIDS]
            reply, _ = self._once(OpenerRequest(Kind.MOUNT_NAMESPACES, tail=struct.pack(f"<{len(some)}I", *some)))
            inodes = [inode or None for (inode,) in struct.iter_unpack("<Q", reply.tail)]
            if len(inodes) != len(some):
                raise OpenerAwayError("it answered something else")
            found += inodes
        return found

    def owner_of_user_namespace(self, pid: int) -> int | None:
        reply, _ = self._once(OpenerRequest(Kind.USER_NAMESPACE, pid=pid))
        return reply.value - 1 if reply.value else None

    def smaps_rollup(self, pid: int) -> str:
        descriptor = self._descriptor(OpenerRequest(Kind.SMAPS_ROLLUP, pid=pid))
        try:
            return os.read(descriptor, MAX_SMAPS_BYTES).decode(errors="replace")
        finally:
            os.close(descriptor)

    def kubelet(self, path: Path) -> sockets.socket:  # noqa: ARG002 - the opener has its own
        return sockets.socket(fileno=self._descriptor(OpenerRequest(Kind.KUBELET)))

    @property
    def settings_owner(self) -> int:
        return 0

    def make_settings_folder(self, run_dir: Path) -> None:
        self._once(OpenerRequest(Kind.MAKE_SETTINGS, self.number_of(run_dir)))

    def write_settings(self, run_dir: Path, name: str, content: bytes) -> None:
        self._once(OpenerRequest(Kind.WRITE_SETTINGS, self.number_of(run_dir), name=name, tail=content))

    def delete_settings(self, run_dir: Path, name: str) -> None:
        self._once(OpenerRequest(Kind.DELETE_SETTINGS, self.number_of(run_dir), name=name))

    def number_of(self, path: Path) -> int:
        """The place of a run directory in the opener's list. Raises ``UnsafeFileError`` for one that it does not
        serve."""
        if path not in self._numbers:
            self._ask_run_dirs()
        if path not in self._numbers:
            raise UnsafeFileError("not_served", _not_served(path))
        return self._numbers[path]

    def _ask_run_dirs(self) -> None:
        reply, _ = self._once(OpenerRequest(Kind.RUN_DIRS))
        served = [Path(os.fsdecode(one)) for one in reply.tail.split(b"\0")]
        self._numbers = {one: number for number, one in enumerate(served)}

    def leave(self, connection: OpenerConnection) -> None:
        """Let go of what ``connection`` holds, and keep it for later."""
        if self._is_silent():
            connection.close()
            return
        try:
            connection.ask(OpenerRequest(Kind.LEAVE))
        except (OSError, UnsafeFileError):
            connection.close()
        else:
            self._keep(connection)

    def close(self) -> None:
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()
        with self._pinging:
            if self._ping is not None:
                self._ping.close()
                self._ping = None

    def _folder(self, connection: OpenerConnection, request: OpenerRequest, run_dir: tuple[int, int]) -> RemoteFolder:
        try:
            reply, _ = connection.ask(request)
            folder = RemoteFolder(self, connection, reply.value)
        except BaseException:
            self.leave(connection)
            raise
        if reply.signature is None or (reply.signature.device, reply.signature.inode) != run_dir:
            folder.__exit__()
            raise FileNotFoundError(errno.ENOENT, "another run directory is there now")
        return folder

    def _once(self, request: OpenerRequest) -> tuple[OpenerReply, int | None]:
        connection, reply, descriptor = self._asked(request)
        self._keep(connection)
        return reply, descriptor

    def _descriptor(self, request: OpenerRequest) -> int:
        _, descriptor = self._once(request)
        if descriptor is None:
            raise OpenerAwayError("it sent no descriptor")
        return descriptor

    def _begun(self, request: OpenerRequest) -> OpenerConnection:
        """A connection that has been answered ``request``, and is the caller's."""
        connection, _, _ = self._asked(request)
        return connection

    def _asked(self, request: OpenerRequest) -> tuple[OpenerConnection, OpenerReply, int | None]:
        """Ask by a connection that was kept, or by a new one: those that were kept end with the opener."""
        while True:
            if self._is_silent():
                raise OpenerAwayError("it has not answered yet")
            with self._lock:
                kept = self._idle.pop() if self._idle else None
            connection = kept or self._connection(self._is_awake)
            try:
                return connection, *connection.ask(request)
            except OpenerAwayError as error:
                connection.close()
                if kept is None or isinstance(error.__cause__, TimeoutError):
                    raise
            except (OSError, UnsafeFileError):
                self._keep(connection)
                raise

    def _connection(self, is_awake: Callable[[], bool] = lambda: True) -> OpenerConnection:
        return OpenerConnection(self._path, is_awake=is_awake, connect=self._connect)

    def _is_silent(self) -> bool:
        """Whether the answer to a ping is still missing. Costs no time."""
        with self._pinging:
            if self._ping is None:
                return False
            try:
                if not self._ping.has_answered(0.0):
                    return True
            except (OSError, WireError):
                pass  # this opener has ended: the next request shows what there is now
            self._ping.close()
            self._ping = None
            return False

    def _is_awake(self) -> bool:
        """Whether it answers a ping; one that does not is silent from now on. Other threads wait for the same
        answer."""
        with self._pinging:
            if self._ping is not None:
                return False
            try:
                ping = self._connection()
            except OpenerAwayError:
                return False
            try:
                ping.send(OpenerRequest(Kind.RUN_DIRS))
                is_answered = ping.has_answered(PING_S)
            except (OSError, WireError):
                ping.close()
                return False
            if is_answered:
                ping.close()
            else:
                self._ping = ping
            return is_answered

    def _keep(self, connection: OpenerConnection) -> None:
        with self._lock:
            if len(self._idle) < MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


def open_opener(path: Path | None, run_dirs: Collection[Path] = ()) -> Opener:
    """The opener behind the socket ``path``, whose ``check`` asks for ``run_dirs``; without one, this process
    itself."""
    return LOCAL if path is None else RemoteOpener(path, run_dirs)


def _not_served(path: Path) -> str:
    return f"the opener does not serve {path}: start it with --run-dir {path}"


def _checked(name: str) -> str:
    """Raises ``UnsafeFileError`` for a name that the opener does not take."""
    if not is_of_a_process(name):
        raise UnsafeFileError("name", "the name is not <pid>-<starttime> with a known ending")
    return name


def _close(descriptors: Collection[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
