"""Opens a folder in another mount namespace, through a process that lives there, without trusting anything on the way.

A user controls everything behind /proc/PID/root. An absolute link there would lead into *our* root, and a mount may
block for ever. So every folder on the way is opened by its name alone, without following links, and a name is looked
up only on file systems that answer by themselves (``Mounts``). Where the way crosses others (a root on squashfuse),
the process itself may have the folder open, as probes do.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.safe_files import (
    DIRECTORY,
    NAME_ONLY,
    UnsafeFileError,
    closing_fd,
    mount_of,
    opened,
    opened_name,
)
from tidegauge.core.ids import ProcessId
from tidegauge.core.proc_stat import parse_proc_stat

# Mounts that a process sees, and which of them names can be looked up on without waiting.
# A lookup in a FUSE file system waits for the process behind it, for ever and beyond SIGKILL if that process likes; one
# in a network file system waits for a server. The kernel itself answers /proc/PID/mountinfo.

MAX_MOUNTINFO_BYTES = 1 << 20
"""A container has some 50 mounts of some 150 bytes; one with ten thousand is not searched."""

LOCAL = frozenset(
    ["tmpfs", "ramfs", "rootfs", "devtmpfs", "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "squashfs", "erofs"]
)
"""File systems that only an admin can mount, or that are memory: none of them waits for another process."""
STACKED = frozenset({"overlay"})
"""As good as the file system below, which is unknown: an admin's is trusted, a user may put one on their own FUSE."""

_NS_GET_USERNS = 0xB701
"""ioctl_ns(2): a descriptor of the user namespace that owns this namespace."""


class Mounts(NamedTuple):
    """A mount namespace's mounts as one of its processes sees them."""

    mountinfo: bytes
    """Lines of proc_pid_mountinfo(5); one at the end that is cut off does not count. Spaces and ends of lines in what
    a user may choose are written as \\040 and \\012."""
    made_by_admin: bool
    """Whether mounting there needs the rights of root in our own user namespace."""

    def file_system(self, mount: int) -> str | None:
        """Type of the file system of a mount id; ``None`` for one that this process cannot reach."""
        # Of thousands of lines two or three are asked for.
        start = 0 if self.mountinfo.startswith(b"%d " % mount) else self.mountinfo.find(b"\n%d " % mount) + 1
        end = self.mountinfo.find(b"\n", start)
        if end < 0 or not self.mountinfo.startswith(b"%d " % mount, start):
            return None
        _, _, tail = self.mountinfo[start:end].partition(b" - ")
        file_system, space, _ = tail.partition(b" ")
        return file_system.decode(errors="replace") if space else None

    def harmless(self, mount: int) -> bool:
        """Whether names can be looked up on this mount without waiting."""
        name = self.file_system(mount)
        return name in LOCAL or (self.made_by_admin and name in STACKED)


def read_mounts(proc: int, namespace: int) -> Mounts:
    """``proc`` is a descriptor of /proc/PID, ``namespace`` of its ns/mnt. Raises ``OSError``."""
    with opened("mountinfo", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc) as fd:
        chunks = []
        left = MAX_MOUNTINFO_BYTES
        while left > 0 and (chunk := os.read(fd, left)):
            chunks.append(chunk)
            left -= len(chunk)
    return Mounts(b"".join(chunks), _is_of_our_users(namespace))


def _is_of_our_users(namespace: int) -> bool:
    try:
        owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    except OSError:  # it belongs to no user namespace that is ours or below
        return False
    with closing_fd(owner):
        return os.fstat(owner).st_ino == os.stat("/proc/self/ns/user").st_ino


MAX_DESCRIPTORS = 1024
"""Descriptors of one process that are looked at for an open folder."""

_PROC_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_PROC_FILE = os.O_RDONLY | os.O_CLOEXEC
_VERY_THING = os.O_PATH | os.O_CLOEXEC
"""For root and fd/N, whose links are no paths but lead to the file itself."""


class Entered(NamedTuple):
    """Open descriptors of a process's /proc/PID and root, which stay this process's when its pid is reused."""

    process: int
    root: int
    mounts: Mounts

    def open(self, path: Path) -> int:
        """A descriptor of the folder ``path`` as the process sees it, to list it and to open what is in it.

        Raises ``FileNotFoundError`` where there is no such folder, ``UnsafeFileError``, and other ``OSError``.
        """
        try:
            return _walk(self, path)
        except (UnsafeFileError, PermissionError) as error:  # FUSE may shut out even root
            if isinstance(error, UnsafeFileError) and error.reason != "file_system":
                raise
            held = _held_open(self, path)
            if held is None:
                raise
            return held


@contextmanager
def entered(process: ProcessId, mount_namespace: int, proc: Path) -> Iterator[Entered]:
    """The mount namespace by way of ``process``. Raises ``ProcessLookupError`` if that has ended or left it, and other
    ``OSError``."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(opened(f"{proc}/{process.pid}", _PROC_FOLDER))
            stat_line = stack.enter_context(opened("stat", _PROC_FILE, dir_fd=folder))
            now = parse_proc_stat(os.read(stat_line, 4096).decode(errors="replace"))
            namespace = stack.enter_context(opened("ns/mnt", _PROC_FILE, dir_fd=folder))
            if now is None or now.process != process or os.fstat(namespace).st_ino != mount_namespace:
                raise ProcessLookupError(f"pid {process.pid} is now another process, or elsewhere")
            mounts = read_mounts(folder, namespace)
            root = stack.enter_context(opened("root", _VERY_THING, dir_fd=folder))
        except FileNotFoundError:
            raise ProcessLookupError(f"pid {process.pid} has ended") from None
        yield Entered(folder, root, mounts)


def _walk(entered: Entered, path: Path) -> int:
    fd = os.dup(entered.root)
    try:
        for part in path.parts[1:]:
            _check_folder(fd, entered.mounts)
            below = os.open(part, NAME_ONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        _check_folder(fd, entered.mounts)
        return os.open(".", DIRECTORY, dir_fd=fd)
    finally:
        os.close(fd)


def _check_folder(fd: int, mounts: Mounts) -> None:
    """Raises ``UnsafeFileError`` unless it is a folder in which names can be looked up without delay."""
    mount = mount_of(fd)
    if not mounts.harmless(mount):
        name = mounts.file_system(mount) or "an unknown file system"
        raise UnsafeFileError("file_system", f"the path leads over {name}, which may not answer")
    mode = os.fstat(fd).st_mode
    if not stat.S_ISDIR(mode):
        raise UnsafeFileError(
            "symlink" if stat.S_ISLNK(mode) else "not_directory", "a part of the path is not a folder"
        )


def _held_open(entered: Entered, path: Path) -> int | None:
    """The run directory ``path`` by way of a user's folder in it, if this process has one open.

    The names of what is open are the kernel's (proc_pid_fd(5)); ".." is never more than one step inside one mount.
    """
    with opened("fd", _PROC_FOLDER, dir_fd=entered.process) as descriptors:
        with os.scandir(descriptors) as entries:
            numbers = [entry.name for entry in islice(entries, MAX_DESCRIPTORS)]
        for number in numbers:
            with suppress(OSError, UnsafeFileError):
                above, _, uid = os.readlink(number, dir_fd=descriptors).rpartition("/")
                if not uid.isdigit() or not above.endswith(str(path)):
                    continue
                with opened(number, _VERY_THING, dir_fd=descriptors) as user_folder:
                    _check_folder(user_folder, entered.mounts)
                    with opened_name(user_folder, "..") as run_dir:
                        return os.open(".", DIRECTORY, dir_fd=run_dir)
    return None
