"""Files below a run directory, where everybody may write: nothing is followed, and nothing but the real thing opened.

A user's folder is a real folder that belongs to the uid in its name; a file in it is a regular one of the same uid with
one name. Everything is done relative to the folder that was checked.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

MAX_FOLDERS = 4096
"""Entries of a run directory that are looked at; more than any node has users."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Signature(NamedTuple):
    """What tells one state of a file from another, without reading it."""

    device: int
    inode: int
    mtime_ns: int
    size: int
    mode: int
    uid: int
    links: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(
            status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size,
            status.st_mode, status.st_uid, status.st_nlink,
        )  # fmt: skip

    def same_file(self, other: Signature) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)


class RefusedError(Exception):
    """Not to be used. ``reason`` is a stable word, the message is for people."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class opened:  # noqa: N801 - reads as a verb: with opened(path, flags) as fd
    """A file descriptor for the length of a ``with``."""

    def __init__(self, path: str, flags: int) -> None:
        self._fd = os.open(path, flags)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class opened_folder(opened):  # noqa: N801 - as above
    """A user's folder. Raises ``RefusedError`` for one of another uid, and ``OSError``."""

    def __init__(self, path: Path, uid: int) -> None:
        super().__init__(str(path), DIRECTORY)
        owner = os.fstat(self._fd).st_uid
        if owner != uid:
            os.close(self._fd)
            raise RefusedError("owner", f"the folder belongs to uid {owner}")


def uids_in(run_dir: Path) -> Iterator[int]:
    """The users who seem to have a folder in ``run_dir``; none if it is not there. Raises ``OSError``."""
    with suppress(FileNotFoundError), opened(str(run_dir), DIRECTORY) as fd, os.scandir(fd) as entries:
        for entry in islice(entries, MAX_FOLDERS):
            if entry.name.isascii() and entry.name.isdigit() and str(int(entry.name)) == entry.name:
                yield int(entry.name)


def look_at(folder: int, name: str) -> Signature:
    """The file itself, not what it may point to. Raises ``OSError``."""
    return Signature.of(os.stat(name, dir_fd=folder, follow_symlinks=False))


def open_checked(folder: int, name: str, uid: int) -> tuple[int, Signature]:
    """A descriptor of a file that ``check`` accepts, also after it was opened. Raises ``RefusedError``, ``OSError``.

    Looked at by name first, so that a FIFO or a device is never opened.
    """
    check(look_at(folder, name), uid)
    fd = os.open(name, FILE, dir_fd=folder)
    try:
        signature = Signature.of(os.fstat(fd))
        check(signature, uid)
    except BaseException:
        os.close(fd)
        raise
    return fd, signature


def check(signature: Signature, uid: int) -> None:
    """Raises ``RefusedError`` unless it is a regular file of ``uid`` with one name."""
    if stat.S_ISLNK(signature.mode):
        raise RefusedError("symlink", "it is a symbolic link")
    if not stat.S_ISREG(signature.mode):
        raise RefusedError("not_regular", "it is not a regular file")
    if signature.uid != uid:
        raise RefusedError("owner", f"it belongs to uid {signature.uid}, its folder to {uid}")
    if signature.links == 0:
        raise FileNotFoundError(errno.ENOENT, "deleted a moment ago")
    if signature.links > 1:  # the other name may lie where we would not look
        raise RefusedError("hard_link", f"it has {signature.links} names")


def remove(folder: Path, name: str, signature: Signature, *, socket: str, uid: int) -> None:
    """Delete a file, if it still is the one that was read, and the socket beside it. Raises ``OSError``."""
    with suppress(FileNotFoundError), opened(str(folder), DIRECTORY) as fd:
        if signature.same_file(look_at(fd, name)):
            os.unlink(name, dir_fd=fd)
        beside = look_at(fd, socket)
        if stat.S_ISSOCK(beside.mode) and beside.uid == uid:
            os.unlink(socket, dir_fd=fd)


def reason_of(error: OSError, path: Path) -> str:
    """Why a folder could not be opened with ``O_DIRECTORY | O_NOFOLLOW``: a link answers ENOTDIR, like a file."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR):
        return "permission"
    return "symlink" if path.is_symlink() else "not_directory"
