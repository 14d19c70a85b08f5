"""What an agent must not forget, on disk: it is read again after any restart of the agent.

``agent/node.json`` in the state directory has the node's counters and budgets, ``agent/ranks/PID-TICKS.json`` what is
known of one rank. Each file is one line about the file and one with its content, both JSON. A rank's is replaced as a
whole; the node's, which changes with every poll, is overwritten by one write(2), which the end of a process does not
tear. All of it is of one boot: after another one no rank lives. So nothing is forced to disk (fsync(2)).
"""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
import time
import zlib
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidegauge.agent.opening.safe_files import closing_fd
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import process_in
from tidegauge.core.version import __version__
from tidegauge.files import clear_drafts, replace_file

_log = logging.getLogger(__name__)

FORMAT = 1
"""Grows when an older agent, or this one with an older file, would misread what is kept."""
MAX_FILE_BYTES = 1 << 20
"""Of a rank; one that has trained for a year takes 0.1 MiB."""
MAX_BYTES = 64 << 20
"""Of all files; more are neither read nor written."""
SAVE_EVERY_S = 20.0
"""Of each rank. What a rank did since is read from its ring again, which holds its last 4,096 records: 41 s of steps of
10 ms."""
TIME_SHARE = 0.005
"""Of one core: with many ranks each is saved less often."""
UNCLAIMED_S = 120.0
"""After this long the state of a process that was not found is deleted."""
CLOSE_WAITS_S = 5.0
_NODE = "node.json"
_RANKS = "ranks"
_ASIDE = "aside"

StateDict = Mapping[str, Any]


class BadStateError(ValueError):
    """A state file that this version cannot use."""


_json_of = json.JSONEncoder(separators=(",", ":")).encode


def encoded(content: StateDict, *, boot_id: str) -> bytes:
    body = _json_of(content).encode()
    about = {"format": FORMAT, "release": __version__, "boot_id": boot_id, "crc32": zlib.crc32(body)}
    return _json_of(about).encode() + b"\n" + body


def decoded(raw: bytes, *, boot_id: str) -> StateDict | None:
    """The content; ``None`` if it is of another boot. Raises ``BadStateError``."""
    head, _, body = raw.rstrip(b" ").partition(b"\n")
    try:
        about = json.loads(head)
        if about["format"] != FORMAT:
            raise BadStateError(f"format {about['format']} of release {about['release']}")
        if about["boot_id"] != boot_id:
            return None
        if zlib.crc32(body) != about["crc32"]:
            raise BadStateError("damaged")
        content: StateDict = json.loads(body)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise error if isinstance(error, BadStateError) else BadStateError("damaged") from error
    return content


class AgentState:
    """The state files of one node. The polling thread calls it; a thread of its own writes, so no poll waits for a
    disk. What cannot be written is logged once, and would be lost at a restart."""

    def __init__(self, folder: Path, *, boot_id: str, cpu_s: Callable[[], float] = time.thread_time) -> None:
        """Reads all files."""
        self._folder = folder
        self._boot_id = boot_id
        self._cpu_s = cpu_s
        self._earlier: dict[str, StateDict] = {}
        """What was read and not yet taken up, by file name."""
        self._bytes: dict[str, int] = {}
        """Sizes of the files that there are."""
        self._saved_s: dict[ProcessId, float] = {}
        self._next_s = float("-inf")
        self._began_s: float | None = None
        self._last_node: StateDict = {}
        self._may_drop = True
        """There may be files that no rank and nobody else needs."""
        self._writer = _Writer(folder)
        self._read()

    def node(self) -> StateDict:
        """What was kept of the node; empty where nothing was."""
        return self._earlier.pop(_NODE, {})

    def rank(self, process: ProcessId) -> StateDict | None:
        """What was kept of a rank, once."""
        self._may_drop = True
        return self._earlier.pop(_name(process), None)

    def unclaimed(self) -> tuple[ProcessId, ...]:
        """Ranks of which something was kept that was not taken up yet."""
        processes = (process_in(Path(name).stem) for name in self._earlier)
        return tuple(process for process in processes if process is not None)

    def keep_node(self, content: StateDict) -> None:
        """``content``: not changed afterwards."""
        if content != self._last_node:
            self._last_node = content
            self._put(_NODE, encoded(content, boot_id=self._boot_id))

    def keep_ranks(
        self, ranks: Collection[ProcessId], state_of: Callable[[ProcessId], StateDict], now_s: float
    ) -> None:
        """Save those of ``ranks`` that are due, the longest unsaved first, and delete what is kept of others."""
        if self._saved_s.keys() != set(ranks):
            self._saved_s = {process: self._saved_s.get(process, float("-inf")) for process in ranks}
            self._may_drop = True
        self._drop_others(now_s)
        if now_s < self._next_s:
            return
        for process in sorted(ranks, key=self._saved_s.__getitem__):
            if now_s < self._next_s or now_s - self._saved_s[process] < SAVE_EVERY_S:
                return
            began_s = self._cpu_s()
            self._keep_rank(process, state_of, now_s)
            self._next_s = max(self._next_s, now_s - 1.0) + (self._cpu_s() - began_s) / TIME_SHARE

    def close(self, ranks: Collection[ProcessId], state_of: Callable[[ProcessId], StateDict], now_s: float) -> None:
        """Save all ranks and wait until all is written, but not for ever."""
        for process in ranks:
            self._keep_rank(process, state_of, now_s)
        self.wait_written(CLOSE_WAITS_S)
        self._writer.close()

    def wait_written(self, timeout_s: float) -> bool:
        """Wait until all that is kept so far is in its files; whether it is."""
        return self._writer.wait_idle(timeout_s)

    def _keep_rank(self, process: ProcessId, state_of: Callable[[ProcessId], StateDict], now_s: float) -> None:
        self._saved_s[process] = now_s
        self._put(_name(process), encoded(state_of(process), boot_id=self._boot_id))

    def _put(self, name: str, raw: bytes) -> None:
        others = sum(self._bytes.values()) - self._bytes.get(name, 0)
        if len(raw) > MAX_FILE_BYTES or others + len(raw) > MAX_BYTES:
            return
        self._bytes[name] = len(raw)
        self._writer.put(name, raw)

    def _drop_others(self, now_s: float) -> None:
        self._began_s = now_s if self._began_s is None else self._began_s
        if self._earlier and now_s - self._began_s >= UNCLAIMED_S:
            self._earlier.clear()
            self._may_drop = True
        if not self._may_drop:
            return
        self._may_drop = False
        wanted = {_NODE, *map(_name, self._saved_s), *self._earlier}
        for name in [name for name in self._bytes if name not in wanted]:
            del self._bytes[name]
            self._writer.put(name, None)

    def _read(self) -> None:
        bad: list[str] = []
        with suppress(OSError):
            clear_drafts(self._folder)
            clear_drafts(self._folder / _RANKS)
        paths = [self._folder / _NODE]
        with suppress(OSError):
            paths += sorted((self._folder / _RANKS).glob("*.json"))
        for path in paths:
            try:
                self._read_one(path)
            except FileNotFoundError:  # noqa: PERF203 - one that cannot be read costs no other one
                continue
            except (OSError, BadStateError) as error:
                bad.append(f"{path.name}: {error}")
                self._put_aside(path)
        if bad:
            _log.warning(
                "%d of the agent's state files in %s cannot be used and are put aside (%s, …): the agent begins anew "
                "with what they are about", len(bad), self._folder, bad[0],
            )  # fmt: skip

    def _read_one(self, path: Path) -> None:
        name = os.fspath(path.relative_to(self._folder))
        # To open what somebody else put there must neither wait (a FIFO) nor act (a device).
        with closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise BadStateError("no regular file")
            raw = os.read(file, MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES or sum(self._bytes.values()) + len(raw) > MAX_BYTES:
            raise BadStateError("too large")
        content = decoded(raw, boot_id=self._boot_id)
        self._bytes[name] = len(raw)  # of another boot: deleted with the first poll
        if content is not None:
            self._earlier[name] = content

    def _put_aside(self, path: Path) -> None:
        aside = self._folder / _ASIDE
        with suppress(OSError):
            aside.mkdir(exist_ok=True, mode=0o700)
            path.replace(aside / path.name)


class _Writer:
    """Writes and deletes files in a thread of its own; of one name only the newest content."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder)
        self._wanted: dict[str, bytes | None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writing = self._closed = self._failing = False

    def put(self, name: str, content: bytes | None) -> None:
        """``None``: delete it."""
        with self._changed:
            if self._closed:
                return
            self._wanted[name] = content
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="tidegauge-state", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait_idle(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._wanted and not self._writing, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                while not self._wanted:
                    if self._closed:
                        return
                    self._changed.wait()
                name = next(iter(self._wanted))
                content = self._wanted.pop(name)
                self._writing = True
            self._write(name, content)

    def _write(self, name: str, content: bytes | None) -> None:
        path = f"{self._folder}/{name}"
        try:
            if content is None:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                return
            write = _overwrite if name == _NODE else replace_file
            try:
                write(path, content)
            except FileNotFoundError:
                Path(path).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                write(path, content)
        except OSError as error:
            if not self._failing:
                _log.warning("%s cannot be written, so a restarted agent will not know it: %s", path, error)
            self._failing = True
        else:
            self._failing = False


def _overwrite(path: str, content: bytes) -> None:
    """In a tenth of the time of ``replace_file``. What was longer is covered with spaces."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, content.ljust(os.fstat(handle).st_size), 0)
    finally:
        os.close(handle)


def _name(process: ProcessId) -> str:
    return f"{_RANKS}/{process.pid}-{process.start_ticks}.json"
