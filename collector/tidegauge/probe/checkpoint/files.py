"""Proof of a checkpoint by a fresh file: compares listings of the declared paths before and after the request.

A file's time is never compared with a clock, only with other listings: another machine's clock, a skewed file
server and coarse times do not matter. Everything here runs in the helper thread. On a dead file server it
hangs, and with it the command socket; it holds no lock meanwhile, and training does not wait for it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from tidegauge.core.text import one_line

PATH_VARIABLE = "TIDEGAUGE_CHECKPOINT_PATH"
MAX_ENTRIES = 10_000
MAX_DEPTH = 4
"""A file directly in a declared folder is at depth 1; deeper ones are not listed."""
SETTLED_S = 4.0
"""How long nothing may change before a checkpoint counts as written. An NFS client caches the attributes of a changed
file for 3 seconds (nfs(5), acregmin), so two looks closer together may see one answer."""

_TEMPORARY_BEGINNINGS = (".", "tmp")
_TEMPORARY_ENDINGS = (".tmp", ".temp", ".part", ".partial", ".incomplete", ".lock", ".swp", "~")
_LOG_BEGINNING = "events.out.tfevents"
_LOG_ENDING = ".log"
_MAX_NAMES = 5
_MAX_NAME_CHARS = 80
"""Characters; with ``_MAX_NAMES`` it keeps a reply below 8 KiB, escaped as JSON, whatever characters they are."""


class UnreadableError(Exception):
    """The declared paths cannot be listed; the message names the path and the reason."""


class FileState(NamedTuple):
    """Distinguishes one content of a file from another, and a new file from a renamed old one."""

    size_bytes: int
    mtime_ns: int
    inode: int
    device: int


class FileName(NamedTuple):
    """A file and the declared path under which it was found."""

    declared: str
    below: str
    """Relative to ``declared``; empty for a file that was declared itself."""

    def __str__(self) -> str:
        """As people know it, short enough for a reply."""
        name = one_line(self.below or os.path.basename(self.declared), None)
        return name if len(name) <= _MAX_NAME_CHARS else f"...{name[3 - _MAX_NAME_CHARS :]}"


Listing = Mapping[FileName, FileState]


def declared_paths(text: str) -> tuple[str, ...]:
    """The paths in the variable, absolute: a job may change its working directory between two looks."""
    try:
        return tuple(os.path.abspath(path) for path in text.split(os.pathsep) if path)
    except FileNotFoundError:  # the working directory was removed: a relative path leads nowhere
        return tuple(path for path in text.split(os.pathsep) if os.path.isabs(path))


def list_files(paths: Sequence[str]) -> dict[FileName, FileState]:
    """All regular files under the paths, except logs. Links inside are not followed, a path that is a link is.

    A path that does not exist has no files: the first checkpoint may make it. Raises ``UnreadableError``.
    """
    found: dict[FileName, FileState] = {}
    looked_at = 0
    for path in paths:
        try:
            status = _status(path)
            if status is None:
                continue
            if stat.S_ISREG(status.st_mode):
                found[FileName(path, "")] = _state(status)
            for entry, below in _walk(path) if stat.S_ISDIR(status.st_mode) else ():
                looked_at += 1
                if looked_at > MAX_ENTRIES:
                    raise UnreadableError(
                        f"{path} has too many files (at most {MAX_ENTRIES} are checked): declare a folder that only "
                        "checkpoints are written to"
                    )
                if not _is_log(entry.name) and entry.is_file(follow_symlinks=False):
                    _add(found, FileName(path, below), entry)
        except OSError as error:
            raise UnreadableError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    return found


def _status(path: str) -> Optional[os.stat_result]:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _walk(path: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    folders = [("", 1)]
    while folders:
        below, depth = folders.pop()
        try:
            entries = os.scandir(os.path.join(path, below))
        except FileNotFoundError:
            continue  # an old checkpoint was removed meanwhile
        with entries:
            for entry in entries:
                yield entry, below + entry.name
                if depth < MAX_DEPTH and entry.is_dir(follow_symlinks=False):
                    folders.append((f"{below}{entry.name}/", depth + 1))


def _add(found: dict[FileName, FileState], name: FileName, entry: os.DirEntry[str]) -> None:
    try:
        found[name] = _state(entry.stat(follow_symlinks=False))
    except FileNotFoundError:
        return  # removed or renamed since it was listed


def _state(status: os.stat_result) -> FileState:
    return FileState(status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev)


def _is_log(name: str) -> bool:
    return name.endswith(_LOG_ENDING) or name.startswith(_LOG_BEGINNING)


def is_temporary(below: str) -> bool:
    """Whether a file, or a folder on the way to it, has a name that is only used until it is complete."""
    return any(
        part.lower().startswith(_TEMPORARY_BEGINNINGS) or part.lower().endswith(_TEMPORARY_ENDINGS)
        for part in below.split("/")
    )


class Proof(NamedTuple):
    """The result of one look."""

    proven: bool
    names: tuple[str, ...]
    """Fresh, complete files as people know them, the largest first; as many as fit a reply."""
    detail: str
    """What is fresh, for people."""
    moving: Optional[str]
    """A fresh file that changed in the last ``SETTLED_S``."""


class FreshFiles:
    """Compares listings with the baseline taken before the request. Values in, values out."""

    def __init__(self, baseline: Listing) -> None:
        self._baseline = baseline
        self._old_states = frozenset(baseline.values())
        self._seen: dict[FileName, tuple[FileState, float]] = {}

    def look(self, listing: Listing, *, now_s: float) -> Proof:
        """One more look, at ``now_s`` of a clock that never runs backwards.

        Proven: a file with content and a final name is new or changed, and nothing that is fresh, temporary files
        included, has changed for ``SETTLED_S``: a checkpoint in many parts is complete when the last part is.
        """
        fresh = {name: state for name, state in listing.items() if self._is_fresh(name, state)}
        self._seen = {name: (state, self._since(name, state, now_s)) for name, state in fresh.items()}
        whole = {name: state for name, state in fresh.items() if state.size_bytes and not is_temporary(name.below)}
        names = sorted(whole, key=lambda name: (-whole[name].size_bytes, name))
        moving = next((name for name, (_, since_s) in self._seen.items() if now_s - since_s < SETTLED_S), None)
        return Proof(
            proven=bool(whole) and moving is None,
            names=tuple(str(name) for name in names[:_MAX_NAMES]),
            detail=_detail(names, whole, fresh),
            moving=None if moving is None else str(moving),
        )

    def _is_fresh(self, name: FileName, state: FileState) -> bool:
        # An old checkpoint under a new name (rotation) has the state of a file that was there before.
        return self._baseline.get(name) != state and state not in self._old_states

    def _since(self, name: FileName, state: FileState, now_s: float) -> float:
        before, since_s = self._seen.get(name, (None, now_s))
        return since_s if before == state else now_s


def _detail(names: Sequence[FileName], whole: Listing, fresh: Listing) -> str:
    if not fresh:
        return "no new file yet"
    if not names:
        return f"only temporary or empty files are new, such as {next(iter(fresh))}"
    size_mib = whole[names[0]].size_bytes / (1 << 20)
    others = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
    return f"{names[0]} ({size_mib:,.1f} MiB){others} new"
