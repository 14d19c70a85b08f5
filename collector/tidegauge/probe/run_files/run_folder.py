"""The folder ``<run dir>/<uid>`` of a probe, opened so that nobody can redirect its writes.

All users share the run directory like /tmp. So the folder below it is opened by descriptor without following
links, must belong to this user alone, and everything in it is named relative to that descriptor.
"""

from __future__ import annotations

import contextlib
import os
import resource
import stat
import time
from collections.abc import Callable, Mapping
from typing import Optional

from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import DEFAULT_RUN_DIRS, process_of, run_dirs
from tidegauge.probe.process_facts import is_alive
from tidegauge.probe.run_files.own_descriptor import OwnDescriptor
from tidegauge.probe.run_files.own_user import in_user_namespace, outer_uid

LEFTOVER_AGE_S = 600.0
"""Rings of dead processes stay this long for an agent to read; without an agent the next probe removes them. Living
probes touch their ring every minute: older than this is dead in *any* pid namespace that shares the folder."""

SHARE_OF_FREE = 8
"""A snapshot takes at most this part of what is free: /dev/shm of a container has 64 MiB, and NCCL lives there too."""

_MAX_LOOKED_AT = 1000
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnsafeFolderError(OSError):
    """The folder is unsafe to write to: a link, another user's, or writable for others."""


class NoRoomError(OSError):
    """The folder has too little free space for a file, or the file is too large. The text is for people."""


class RunFolder:
    """An open ``<run dir>/<uid>``. The caller closes it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._own = OwnDescriptor(descriptor)

    @property
    def descriptor(self) -> int:
        """The descriptor, for calls with ``dir_fd``. Raises ``DescriptorLostError``."""
        return self._own.number()

    def create(self, name: str) -> int:
        """A descriptor of a new empty file of mode 0600; a file of that name from before ``execve`` is replaced."""
        self.remove(name)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=self.descriptor)

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.descriptor)

    def free_bytes(self) -> int:
        """Bytes that the file system has left for this user."""
        room = os.fstatvfs(self.descriptor)
        return room.f_bavail * room.f_frsize

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether a file of this size may be written: enough stays free, and no ``SIGXFSZ`` comes (setrlimit(2))."""
        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        too_long = limit_bytes != resource.RLIM_INFINITY and size_bytes > limit_bytes
        return not too_long and size_bytes <= self.free_bytes() // SHARE_OF_FREE

    def write(self, name: str, content: bytes) -> None:
        """A new file with this content, or none. Raises ``OSError``."""
        with open(self.create(name), "wb") as file:
            try:
                file.write(content)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file.fileno(), 0)
                    self.remove(name)
                raise

    def rename(self, name: str, new_name: str) -> None:
        """Give a file its name; one that has it already is replaced."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    def remove_leftovers(
        self,
        *,
        now_s: Callable[[], float] = time.time,
        alive: Callable[[ProcessId], bool] = is_alive,
    ) -> int:
        """Remove files of dead processes (rings, snapshots …) that are older than ``LEFTOVER_AGE_S``; their number.

        Checks a bounded number of files, and goes on past any that it may not remove.
        """
        removed = 0
        oldest_kept_s = now_s() - LEFTOVER_AGE_S
        with os.scandir(self.descriptor) as entries:
            for looked_at, entry in enumerate(entries):
                if looked_at >= _MAX_LOOKED_AT:
                    break
                process = process_of(entry.name)
                if process is None:
                    continue
                with contextlib.suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < oldest_kept_s and not alive(process):
                        self.remove(entry.name)
                        removed += 1
        return removed

    def close(self) -> None:
        self._own.close()


def open_run_folder(run_dir: str, *, uid: int) -> RunFolder:
    """Open ``<run_dir>/<uid>``, making it (and one level above) where it is missing.

    In a user namespace the folder is named for the uid that it has outside (``own_user``).
    Raises ``UnsafeFolderError`` or another ``OSError`` if this place cannot be used.
    """
    name = str(outer_uid(uid))
    parent = _open_run_dir(run_dir, uid=uid)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
    finally:
        os.close(parent)
    path = os.path.join(run_dir, name)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != uid:
            raise UnsafeFolderError(f"{path} belongs to uid {found.st_uid}")
        if stat.S_IMODE(found.st_mode) & 0o077:
            os.fchmod(descriptor, 0o700)
    except BaseException:
        os.close(descriptor)
        raise
    return RunFolder(path, descriptor)


def _open_run_dir(run_dir: str, *, uid: int) -> int:
    made = False
    # Root of a container is not the site: its /run may be a part of its image, on a disk or where no agent can look.
    if run_dir != DEFAULT_RUN_DIRS[0] or not in_user_namespace():
        with contextlib.suppress(FileExistsError):
            os.mkdir(run_dir, 0o755)
            made = True
    descriptor = os.open(run_dir, _DIRECTORY)
    try:
        found = os.fstat(descriptor)
        if made and run_dir in DEFAULT_RUN_DIRS:
            os.fchmod(descriptor, 0o1777)  # other users' jobs come here too
        elif stat.S_IMODE(found.st_mode) & 0o022 and not found.st_mode & stat.S_ISVTX:
            raise UnsafeFolderError(f"{run_dir} is writable by others without the sticky bit")
        elif found.st_uid not in (0, uid) and not found.st_mode & stat.S_ISVTX:
            raise UnsafeFolderError(f"{run_dir} belongs to uid {found.st_uid}")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_any_run_folder(environ: Mapping[str, str]) -> Optional[RunFolder]:
    """The folder in the first usable run directory, or ``None``."""
    for run_dir in run_dirs(environ):
        with contextlib.suppress(OSError):
            return open_run_folder(run_dir, uid=os.geteuid())
    return None
