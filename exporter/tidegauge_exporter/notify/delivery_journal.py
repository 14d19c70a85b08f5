"""What has been said, and where: so that nothing is said twice, also after a restart or SIGKILL.

A journal of JSON lines in the state directory, all of it in memory as well. ``say`` appends one line and returns when
it is on disk; when most lines are outdated, the file is written anew beside the old one and takes its place. Writing
all of it each time would be as simple, but costs with every message what the journal costs once in thousands of them.
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

log = logging.getLogger(__name__)

FORMAT = b'["tidegauge-notebook", 1]\n'
"""The first line. A file that begins with another one was not written by us, or by a later version."""
MAX_ENTRIES = 20_000
"""Those that are over go first, then the oldest."""
KEEP_OVER_S = 30 * 86400.0
KEEP_S = 180 * 86400.0
"""For what nobody marked as over: its end was missed."""
MAX_FILE_BYTES = 256 * 1024 * 1024
OUTDATED_LINES = 200
"""Beyond this many more lines than twice the entries, the file is written anew."""


class DeliveryJournalError(Exception):
    """Another process writes this journal: two notifiers would say everything twice."""


class _Entry(NamedTuple):
    value: str
    over: bool
    at_unix_s: float


_Key = tuple[str, str]
"""Sink, key."""


class DeliveryJournal:
    """Thread-safe. Sinks use ``said``, ``say``, ``forget`` and ``keys``, each under its own name; keys and values are
    texts that only the sink understands.

    What cannot be written (a full disk) is still known for as long as this process lives, so that nobody hears the same
    line every two seconds; ``problem`` says it, and the next ``say`` tries to write all of it. A damaged file is kept
    as ``NAME.damaged``, and what is readable in it goes on. Raises ``DeliveryJournalError`` where another process has
    it.
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
        """The value that was last said with this key; ``None``: nothing was."""
        with self._lock:
            entry = self._entries.get((sink, key))
            return None if entry is None else entry.value

    def say(self, sink: str, key: str, value: str, *, over: bool = False) -> None:
        """Remember ``value``, on disk when this returns. ``over``: nothing more is expected to be said about it, so
        that it may be forgotten after 30 days, and before others. Never raises."""
        with self._lock:
            entry = _Entry(value, over, self._wall_s())
            before = self._entries.pop((sink, key), None)
            self._entries[sink, key] = entry
            if before is not None and before[:2] == entry[:2]:
                return
            self._write(_line((sink, key), entry))

    def forget(self, sink: str, key: str) -> None:
        """As if it had never been said. Never raises."""
        with self._lock:
            if self._entries.pop((sink, key), None) is not None:
                self._write(_line((sink, key), None))

    def keys(self, sink: str, prefix: str = "") -> list[str]:
        """What is known of a sink, the one that was said longest ago first."""
        with self._lock:
            return [key for name, key in self._entries if name == sink and key.startswith(prefix)]

    @property
    def problem(self) -> str | None:
        """Why the file cannot be written; ``None``: all is on disk."""
        with self._lock:
            return self._problem

    def close(self) -> None:
        """What is said from now on is not written any more; another process may have the file."""
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
        """The whole anew, in one step. Raises ``OSError``; then the old file is as it was."""
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
        """What the file says. Raises ``OSError``."""
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return
        whole, _, _ = content.rpartition(b"\n")  # a line that SIGKILL cut short was never said
        lines = whole.split(b"\n")
        bad = 0
        if lines[0] + b"\n" != FORMAT or len(content) > MAX_FILE_BYTES:
            lines, bad = [], 1
        for key, entry in map(_parse, lines[1:]):
            if key is None:
                bad += 1
                continue
            self._entries.pop(key, None)
            if entry is not None:
                self._entries[key] = entry
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


def _parse(line: bytes) -> tuple[_Key | None, _Entry | None]:
    """Key and entry; no entry for what was forgotten, no key for what cannot be read."""
    try:
        sink, key, value, over, at_unix_s = json.loads(line)
        entry = None if value is None else _Entry(str(value), bool(over), float(at_unix_s))
    except (ValueError, TypeError, RecursionError):
        return None, None
    return (str(sink), str(key)), entry


def _line(key: _Key, entry: _Entry | None) -> bytes:
    said = [None, None, None] if entry is None else list(entry)
    return json.dumps([*key, *said], separators=(",", ":")).encode() + b"\n"


def _append(descriptor: int, data: bytes) -> None:
    """Raises ``OSError``; then a part of it may be there."""
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
    """Held until it is closed or the process ends. Not on the journal itself: that is replaced now and then."""
    try:
        descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
    return descriptor
