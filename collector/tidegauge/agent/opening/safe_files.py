"""Safe access to files below a run directory, where everybody may write: follows no link, opens only checked files.

A user's folder is a real folder of one owner; a file in it is a regular file of the same uid with one name. All access
is relative to the folder that was checked, on the run directory's mount: a mount over a name
may be another user's folder, or a FUSE file system whose owner blocks everybody for ever. So a name is first opened
with O_PATH, which asks no file system, and read only once the kernel has confirmed that its mount is the same.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAME_ONLY = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_NS = (1 << 63) - 1
_FILE = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class UnsafeFileError(Exception):
    """The file must not be used. ``reason`` is a stable word, the message is for people."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


class closing_fd:  # noqa: N801 - reads as a verb: with closing_fd(os.open(path, flags)) as fd
    """Context manager that closes a file descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class Signature(NamedTuple):
    """Identifies one state of a file, without reading its content."""

    device: int
    inode: int
    mtime_ns: int
    """Whatever its owner set it to; 64 bits of it, with the sign."""
    size: int
    mode: int
    uid: int
    links: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        return cls(
            status.st_dev, status.st_ino, max(-_MAX_NS, min(status.st_mtime_ns, _MAX_NS)), status.st_size,
            status.st_mode, status.st_uid, status.st_nlink,
        )  # fmt: skip

    def same_file(self, other: Signature) -> bool:
        return (self.device, self.inode) == (other.device, other.inode)


class opened(closing_fd):  # noqa: N801 - reads as a verb: with opened(path, flags) as fd
    """Context manager that opens a path and closes it."""

    def __init__(self, path: str, flags: int, *, dir_fd: int | None = None) -> None:
        self._fd = os.open(path, flags, dir_fd=dir_fd)  # one call less: thousands are opened in a poll


def mount_of(fd: int) -> int:
    """``mnt_id`` in proc_pid_fdinfo(5): which mount it is on. The kernel answers, no file system is asked."""
    with opened(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC) as info:
        _, _, said = os.read(info, 4096).partition(b"mnt_id:")
    return int(said.split()[0])


class opened_name(closing_fd):  # noqa: N801 - as above; a generator would take twice the time
    """Context manager that opens with O_PATH the file that has ``name`` now; ``mount`` is ``mount_of(folder)``, where
    that is known.

    Raises ``UnsafeFileError`` for what is mounted there, and ``OSError``.
    """

    def __init__(self, folder: int, name: str, *, mount: int | None = None) -> None:
        super().__init__(os.open(name, NAME_ONLY, dir_fd=folder))
        try:
            if mount_of(self._fd) != (mount_of(folder) if mount is None else mount):
                raise UnsafeFileError("mount", "something is mounted there")
        except BaseException:
            os.close(self._fd)
            raise


def look_at(folder: int, name: str, *, mount: int | None = None) -> Signature:
    """State of the file itself, never of a link's target. Arguments and failures as for ``opened_name``."""
    with opened_name(folder, name, mount=mount) as fd:
        return Signature.of(os.fstat(fd))


def open_checked(folder: int, name: str, uid: int, *, mount: int | None = None) -> tuple[int, Signature]:
    """A descriptor of a file that ``check`` accepts. Raises ``UnsafeFileError``, ``OSError``.

    The file that was checked is opened, so never a FIFO or a device.
    """
    with opened_name(folder, name, mount=mount) as found:
        signature = Signature.of(os.fstat(found))
        check(signature, uid)
        return os.open(f"/proc/self/fd/{found}", _FILE), signature


def check(signature: Signature, uid: int) -> None:
    """Raises ``UnsafeFileError`` unless it is a regular file of ``uid`` with one name."""
    if stat.S_ISLNK(signature.mode):
        raise UnsafeFileError("symlink", "it is a symbolic link")
    if not stat.S_ISREG(signature.mode):
        raise UnsafeFileError("not_regular", "it is not a regular file")
    if signature.uid != uid:
        raise UnsafeFileError("owner", f"it belongs to uid {signature.uid}, its folder to {uid}")
    if signature.links == 0:
        raise FileNotFoundError(errno.ENOENT, "deleted a moment ago")
    if signature.links > 1:  # the other name may lie where we would not look
        raise UnsafeFileError("hard_link", f"it has {signature.links} hard links")
