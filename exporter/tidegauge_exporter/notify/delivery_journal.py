"""The record of messages that were sent, and where, so that none is sent twice, also after a restart or SIGKILL.

It is a file of JSON lines in the state directory, and all of it is in memory. ``say`` appends one line and returns when
it is on disk; when most lines are outdated, the file is written anew beside the old one and takes its place. Writing
all of it with every message would cost thousands of times as much.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tidegauge.core.ids import ProcessId
from tidegauge.osproc.processes import identity_of, is_alive

log = logging.getLogger(__name__)

FORMAT = b'["tidegauge-notebook", 1]\n'
"""The first line. A file that begins with another one is foreign, or of a later version."""
MAX_ENTRIES = 20_000
"""Bound of entries; those that are over go first, then the oldest."""
KEEP_OVER_S = 30 * 86400.0
KEEP_S = 180 * 86400.0
"""Age at which entries that were not marked as over are forgotten."""
MAX_FILE_BYTES = 256 * 1024 * 1024
OUTDATED_LINES = 200
"""Lines beyond twice the entries after which the file is written anew."""


class DeliveryJournalError(Exception):
    """Another process writes this journal: two notifiers would send every message twice."""


class _Entry(NamedTuple):
    value: str
    over: bool
    at_unix_s: float


_Key = tuple[str, str]
"""Sink and key."""


class DeliveryJournal:
    """The record of one notifier. Thread-safe. Each sink has its own keys and values, texts that only it understands.

    An entry that cannot be written (a full disk) is kept in memory, so that no message is repeated every two seconds;
    ``problem`` has the reason, and the next ``say`` tries to write all of it. A damaged file is kept as
    ``NAME.damaged``, and its readable lines are used. Raises ``DeliveryJournalError`` if another process has the file.
    """

    def __init__(self, path: Path, *, wall_s: Callable[[], float]) -> None:
        self._path = path
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}
        """Oldest first."""
        self._lines = 0
        self._file: int | None = None
        self._problem: str | None = None
        self._closed = False
        self._only_one = _lock_beside(path)
        try:
            self._read()
            self._rewrite()
        except OSError as error:
            self._trouble(error)

    def said(self, sink: str, key: str) -> str | None:
        """The latest value of this key, if it has one."""
        with self._lock:
            entry = self._entries.get((sink, key))
            return None if entry is None else entry.value

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        """Remember ``value``, on disk when this returns. ``over``: no further value is expected, so that it may be
        forgotten after 30 days, and before others. Never raises."""
        with self._lock:
            entry = _Entry(value, over, self._wall_s())
            before = self._entries.pop((sink, key), None)
            self._entries[sink, key] = entry
            if before is not None and before[:2] == entry[:2]:
                return
            self._write(_line((sink, key), entry))

    def revise(self, revised: Callable[[str, str, str], str | None]) -> int:
        """Put ``revised(sink, key, value)`` in place of each value, or delete the entry where that is ``None``; on disk
        when this returns. Returns how many entries it changed. Raises ``OSError``; then nothing has changed."""
        with self._lock:
            before = dict(self._entries)
            new = {key: revised(*key, entry.value) for key, entry in before.items()}
            changed = [key for key, entry in before.items() if new[key] != entry.value]
            if not changed:
                return 0
            self._entries = {
                key: entry._replace(value=value) for key, entry in before.items() if (value := new[key]) is not None
            }
            try:
                self._rewrite()
            except OSError:
                self._entries = before
                raise
            return len(changed)

    def keys(self, sink: str, prefix: str = "") -> list[str]:
        """The keys of a sink, the oldest value first."""
        with self._lock:
            return [key for name, key in self._entries if name == sink and key.startswith(prefix)]

    @property
    def problem(self) -> str | None:
        """The reason why the file cannot be written; ``None``: all is on disk."""
        with self._lock:
            return self._problem

    def close(self) -> None:
        """Stop writing; another process may have the file."""
        with self._lock:
            self._closed = True
            for descriptor in (self._file, self._only_one):
                if descriptor is not None:
                    os.close(descriptor)
            self._file = self._only_one = None

    def _write(self, line: bytes) -> None:
        if self._closed:
            return
        try:
            outdated = self._lines > 2 * len(self._entries) + OUTDATED_LINES
            if self._file is None or outdated or len(self._entries) > MAX_ENTRIES + OUTDATED_LINES:
                self._rewrite()
            else:
                _append(self._file, line)
                self._lines += 1
        except OSError as error:
            self._trouble(error)

    def _rewrite(self) -> None:
        """Write the file anew, in one step. Raises ``OSError``; then the old file is unchanged."""
        self._forget_old()
        aside = self._path.with_name(f".{self._path.name}.new")
        aside.unlink(missing_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            _append(descriptor, FORMAT + b"".join(_line(key, entry) for key, entry in self._entries.items()))
            os.replace(aside, self._path)
            _sync_folder(self._path.parent)
        except OSError:
            os.close(descriptor)
            raise
        if self._file is not None:
            os.close(self._file)
        self._file, self._lines = descriptor, len(self._entries)
        if self._problem is not None:
            log.info("%s can be written again", self._path)
            self._problem = None

    def _trouble(self, error: OSError) -> None:
        if self._problem is None:
            log.error("%s cannot be written (%s): after a restart, messages would be repeated", self._path, error)
        self._problem = f"{self._path} cannot be written: {error}"
        if self._file is not None:  # half a line may be in it: it is written anew before anything is added
            os.close(self._file)
            self._file = None

    def _forget_old(self) -> None:
        now_s = self._wall_s()
        for key, entry in list(self._entries.items()):
            if now_s - entry.at_unix_s > (KEEP_OVER_S if entry.over else KEEP_S):
                del self._entries[key]
        too_many = len(self._entries) - MAX_ENTRIES
        if too_many > 0:
            for key in sorted(self._entries, key=lambda key: not self._entries[key].over)[:too_many]:
                del self._entries[key]

    def _read(self) -> None:
        """Read the file. Raises ``OSError``."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return
        self._entries, bad = _parsed(content)
        if bad:
            self._keep_damaged(bad)

    def _keep_damaged(self, bad: int) -> None:
        damaged = self._path.with_name(f"{self._path.name}.damaged")
        damaged.unlink(missing_ok=True)
        os.link(self._path, damaged)  # not renamed: until the new one is there, this is all that we have
        log.warning(
            "%s was damaged (%d lines cannot be read) and is kept as %s; %d entries go on, and some messages may be "
            "repeated", self._path, bad, damaged, len(self._entries),
        )  # fmt: skip


def entries_of(path: Path) -> dict[tuple[str, str], str]:
    """The values of a journal, by sink and key, which another process may be writing; none without a file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return {}
    return {key: entry.value for key, entry in _parsed(content)[0].items()}


def _parsed(content: bytes) -> tuple[dict[_Key, _Entry], int]:
    """The entries of a file, the oldest first, and the number of lines that cannot be read."""
    whole, _, _ = content.rpartition(b"\n")  # a line that SIGKILL cut short was never said
    lines = whole.split(b"\n")
    if lines[0] + b"\n" != FORMAT or len(content) > MAX_FILE_BYTES:
        return {}, 1
    entries: dict[_Key, _Entry] = {}
    bad = 0
    for parsed in map(_parse, lines[1:]):
        if parsed is None:
            bad += 1
            continue
        key, entry = parsed
        entries.pop(key, None)
        entries[key] = entry
    return entries, bad


def _parse(line: bytes) -> tuple[_Key, _Entry] | None:
    """Key and entry; ``None`` for an unreadable line."""
    try:
        sink, key, value, over, at_unix_s = json.loads(line)
        return (str(sink), str(key)), _Entry(str(value), bool(over), float(at_unix_s))
    except (ValueError, TypeError, RecursionError):
        return None


def _line(key: _Key, entry: _Entry) -> bytes:
    return json.dumps([*key, *entry], separators=(",", ":")).encode() + b"\n"


def _append(descriptor: int, data: bytes) -> None:
    """Write all of ``data`` to disk. Raises ``OSError``; then a part of it may be there."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock_beside(path: Path) -> int | None:
    """The descriptor of a lock that ends with it. It is not on the journal itself, which is replaced now and then."""
    try:
        descriptor = os.open(_lock_path(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None  # then the journal cannot be written either, which is said
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise DeliveryJournalError(f"{path} is in use: another notifier runs on this state directory") from error
    except OSError as error:
        log.warning("%s cannot be locked (%s): see to it that one notifier runs only", path, error)
        with contextlib.suppress(OSError):
            os.close(descriptor)
        return None
    with contextlib.suppress(OSError):  # a full disk
        _note_writer(descriptor)
    return descriptor


def writer_of(path: Path) -> ProcessId | None:
    """The living process that wrote this journal last; ``None``: it is not known, or has ended."""
    try:
        process = ProcessId(*map(int, json.loads(_lock_path(path).read_bytes())))
    except (OSError, ValueError, TypeError):
        return None
    return process if process.pid != os.getpid() and is_alive(process) else None


def _note_writer(descriptor: int) -> None:
    process = identity_of(os.getpid())
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(process).encode(), 0)


def _lock_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
