"""The place of a node's agent, a locked file: who holds it is the one agent at work on the node.

The kernel gives the lock (flock(2)) back when its holder ends, whatever ended it. An agent in the engine takes the
place from whoever has it; a stand-in waits for it in the kernel, and leaves it to one of the engine's that wants it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import stat
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import NamedTuple, Optional

from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import descends, identity_of, is_alive, send_signal

log = logging.getLogger(__name__)

END_GRACE_S = 5.0
"""Between SIGTERM and SIGKILL to the holder that the engine's agent follows."""
ASK_AGAIN_S = 0.05
LEAVE_S = 5.0
"""For so long a stand-in leaves a free place to an agent of the engine's: one that was stopped must not keep it
empty."""
BEAT_EVERY_S = 1.0
MAX_BYTES = 4096


class AgentKind(str, Enum):
    """Where an agent runs."""

    ENGINE = "engine"
    """In an actor of Ray: linked to the coordinator."""
    STAND_IN = "stand-in"
    """In a child of the supervisor: not linked."""


class PlaceHolder(NamedTuple):
    """What the holder says of itself."""

    process: ProcessId
    kind: AgentKind
    port: Optional[int]
    """On which it serves ``/metrics``, once it does."""


class PlaceState(NamedTuple):
    """The place as anybody sees it."""

    is_held: bool
    holder: Optional[PlaceHolder]
    """The latest that has said who it is."""
    beat_ns: int
    """Changes with each sign of life."""


def look_at_place(path: Path) -> PlaceState:
    """Raises ``OSError``, which names ``path`` and what to do, where the file cannot be used."""
    try:
        handle = _opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return PlaceState(is_held=False, holder=None, beat_ns=0)
    try:
        is_held = not _locks(handle, fcntl.LOCK_SH)
        return PlaceState(is_held, _read(handle), os.fstat(handle).st_mtime_ns)
    finally:
        os.close(handle)


def why_not_ours(path: Path, supervisor_pid: int | None) -> str | None:
    """Why an agent below this supervisor cannot have the place, and what to do; ``None``: it can, or has it. Without a
    supervisor any holder is another's. Of no use on a full disk, where holders cannot say who they are."""
    try:
        state = look_at_place(path)
    except OSError as error:
        return str(error)
    if not state.is_held:
        return None
    if state.holder is None:
        return f"a process that does not say who it is holds {path}: end it (`fuser {path}` names it)"
    process = state.holder.process
    if not is_alive(process):
        return (
            f"an agent that cannot be seen from here, in another container or on another host, holds {path}: end its "
            "service, or choose another state directory with --set state_dir=DIR"
        )
    if supervisor_pid is not None and descends(process.pid, supervisor_pid):
        return None
    return (
        f"another agent (pid {process.pid}) holds {path} and has not ended when asked to: end it (`kill {process.pid}`)"
    )


class AgentPlace:
    """One process's hold of the place, from ``take`` or ``take_over`` to ``release``."""

    def __init__(
        self,
        path: Path,
        kind: AgentKind,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        kill: Callable[[ProcessId, int], bool] = send_signal,
    ) -> None:
        me = identity_of(os.getpid())
        assert me is not None
        self._path = path
        self._wish = path.with_suffix(".next")
        """Locked, for sharing, by agents of the engine's that want the place."""
        self._me = me
        self._kind = kind
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._kill = kill
        self._handle: int | None = None
        self._beat_s = float("-inf")
        self._fails = False
        self.last_port: int | None = None
        """Of the holder before: Prometheus may know no other."""

    def take(self) -> bool:
        """Take the place if nobody has it; whether this process has it now. Raises ``OSError``."""
        if self._handle is not None:
            return True
        handle = self._open()
        if not (_locks(handle, fcntl.LOCK_EX) and self._is_at_its_path(handle)):
            os.close(handle)
            return False
        self._has_locked(handle)
        return True

    def wait(self) -> None:
        """Take the place as soon as nobody has it and no agent of the engine's wants it. Raises ``OSError``."""
        handle = self._open()
        free_s: float | None = None
        while True:
            if not _locks(handle, fcntl.LOCK_EX):
                fcntl.flock(handle, fcntl.LOCK_EX)
                free_s = None
            if not self._is_at_its_path(handle):  # deleted while this process waited for it
                os.close(handle)
                handle = self._open()
                continue
            now_s = self._monotonic_s()
            free_s = now_s if free_s is None else free_s
            if not self._is_wished() or now_s - free_s >= LEAVE_S:
                break
            fcntl.flock(handle, fcntl.LOCK_UN)
            self._sleep(ASK_AGAIN_S)
        self._has_locked(handle)

    def take_over(self) -> None:
        """Take the place; a holder is asked to end, and killed where it does not. Returns when this process has it: on
        a full disk, where the file cannot be made, when there is room again."""
        asked: dict[ProcessId, float] = {}
        began_s, is_told = self._monotonic_s(), False
        with self._wishing():
            while not self._takes():
                if not is_told and self._monotonic_s() - began_s >= 2 * END_GRACE_S:
                    is_told = True
                    if (why := why_not_ours(self._path, None)) is not None:
                        log.warning("this agent waits for its place: %s", why)
                holder = self._holder()
                if holder is not None and holder.process != self._me:
                    since_s = asked.setdefault(holder.process, self._monotonic_s())
                    is_patient = self._monotonic_s() - since_s < END_GRACE_S
                    self._kill(holder.process, signal.SIGTERM if is_patient else signal.SIGKILL)
                self._sleep(ASK_AGAIN_S)

    def _holder(self) -> PlaceHolder | None:
        try:
            return look_at_place(self._path).holder
        except OSError:  # as ``_takes`` has said
            return None

    def _open(self) -> int:
        return _opened(self._path, os.O_RDWR | os.O_CREAT)

    def _has_locked(self, handle: int) -> None:
        before = _read(handle)
        self.last_port = None if before is None else before.port
        self._handle = handle
        self._say(self.last_port)

    @contextlib.contextmanager
    def _wishing(self) -> Iterator[None]:
        try:
            handle = os.open(self._wish, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:  # a full disk: a stand-in may come in between, and is asked to end like any other
            yield
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_SH)
            yield
        finally:
            os.close(handle)

    def _is_wished(self) -> bool:
        try:
            handle = os.open(self._wish, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _locks(handle, fcntl.LOCK_EX)
        finally:
            os.close(handle)

    def _takes(self) -> bool:
        try:
            return self.take()
        except OSError as error:
            if not self._fails:
                log.warning("%s cannot be opened; trying on: %s", self._path, error.strerror or error)
            self._fails = True
            return False

    def serves_at(self, port: int) -> None:
        """Let the next holder serve on the same port."""
        self._say(port)

    def beat(self) -> None:
        """Give a sign of life, once a second at most. A holder whose file was deleted takes the new one, or is asked
        to end (SIGTERM) where another agent has that: one is at work."""
        now_s = self._monotonic_s()
        if self._handle is not None and now_s - self._beat_s >= BEAT_EVERY_S:
            self._beat_s = now_s
            with contextlib.suppress(OSError):
                os.utime(self._handle)
                if not self._is_at_its_path(self._handle):
                    self._take_anew(self._handle)

    def _is_at_its_path(self, handle: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(handle))
        except FileNotFoundError:
            return False

    def _take_anew(self, lost: int) -> None:
        handle = self._open()
        if not _locks(handle, fcntl.LOCK_EX):
            os.close(handle)
            log.warning("%s was deleted, and another agent has the new one: this one ends", self._path)
            self._kill(self._me, signal.SIGTERM)
            return
        log.warning("%s was deleted: it is made anew", self._path)
        self._handle = handle
        self._say(None if (before := _read(lost)) is None else before.port)
        os.close(lost)  # whoever waits for it sees that it is no more

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _say(self, port: int | None) -> None:
        assert self._handle is not None
        said = json.dumps({"process": self._me, "kind": self._kind.value, "port": port}).encode()
        try:
            os.ftruncate(self._handle, 0)
            os.pwrite(self._handle, said, 0)
        except OSError as error:  # a full disk: the lock holds all the same
            log.warning("%s cannot be written: %s", self._path, error.strerror or error)


def _opened(path: Path, flags: int) -> int:
    """A descriptor of the place's file, without waiting for a writer where it is a FIFO. Raises ``OSError``."""
    remedy = "remove it, and the node's next agent makes it anew"
    try:
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP):
            raise
        raise OSError(error.errno, f"{error.strerror}: {remedy}", str(path)) from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, f"no regular file: {remedy}", str(path))
    return handle


def _locks(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(handle: int) -> PlaceHolder | None:
    try:
        raw = json.loads(os.pread(handle, MAX_BYTES, 0))
        return PlaceHolder(ProcessId(*raw["process"]), AgentKind(raw["kind"]), raw["port"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
