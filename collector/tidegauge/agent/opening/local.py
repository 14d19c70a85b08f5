"""Acts on other users' files and processes with the rights of this process."""

from __future__ import annotations

import os
import socket as sockets
import stat
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from tidegauge.agent.opening.namespaces import owner_of_user_namespace
from tidegauge.agent.opening.safe_files import (
    DIRECTORY,
    NAME_ONLY,
    Signature,
    UnsafeFileError,
    closing_fd,
    look_at,
    mount_of,
    open_checked,
    opened,
    opened_name,
)
from tidegauge.agent.opening.settings_folder import opened_settings_folder
from tidegauge.agent.opening.ways_in import Entered, entered
from tidegauge.core.ids import ProcessId
from tidegauge.files import replace_file

MAX_SMAPS_BYTES = 1 << 16


class LocalFolder(NamedTuple):
    """The ``OpenFolder`` that this process may open."""

    fd: int
    uid: int
    mount: int
    """``mount_of`` it and of its run directory."""

    def __enter__(self) -> LocalFolder:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def names(self, most: int) -> list[str]:
        with os.scandir(self.fd) as entries:
            return [entry.name for entry in islice(entries, most)]

    def look_at(self, name: str) -> Signature:
        return look_at(self.fd, name, mount=self.mount)

    def open_checked(self, name: str) -> tuple[int, Signature]:
        return open_checked(self.fd, name, self.uid, mount=self.mount)

    def connected(self, name: str, process: ProcessId, uid: int) -> sockets.socket:  # noqa: ARG002 - the port's
        """Connect by descriptor all the way, so that it is to the file that was checked."""
        with opened_name(self.fd, name, mount=self.mount) as found:
            status = os.fstat(found)
            if not stat.S_ISSOCK(status.st_mode) or not status.st_uid == uid == self.uid:
                raise UnsafeFileError("socket", f"{name} is not a socket of uid {uid} in a folder of theirs")
            if status.st_nlink != 1:  # the other name may be another service's
                raise UnsafeFileError("hard_link", f"{name} has {status.st_nlink} hard links")
            return connected(found)

    def delete(self, name: str, signature: Signature, *, socket: str, files: Collection[str]) -> None:
        with suppress(FileNotFoundError, UnsafeFileError):
            self.delete_file(name, signature.device, signature.inode)
        for other, is_socket in ((socket, True), *((file, False) for file in files)):
            with suppress(FileNotFoundError, UnsafeFileError):
                self.delete_beside(other, is_socket=is_socket)

    def delete_file(self, name: str, device: int, inode: int) -> None:
        """Delete the file, if it still is this one. Raises as ``look_at``."""
        found = self.look_at(name)
        if (found.device, found.inode) == (device, inode):
            os.unlink(name, dir_fd=self.fd)

    def delete_beside(self, name: str, *, is_socket: bool) -> None:
        """Delete a socket, or a regular file, of the folder's owner. Raises as ``look_at``."""
        found = self.look_at(name)
        is_such = stat.S_ISSOCK if is_socket else stat.S_ISREG
        if is_such(found.mode) and found.uid == self.uid:
            os.unlink(name, dir_fd=self.fd)


def connected(name: int) -> sockets.socket:
    """A connection, which does not block, to the socket of which ``name`` is a descriptor (O_PATH). Raises ``OSError``,
    ``BlockingIOError`` when too many wait there."""
    connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM | sockets.SOCK_CLOEXEC)
    try:
        connection.setblocking(False)
        connection.connect(f"/proc/self/fd/{name}")
    except BaseException:
        connection.close()
        raise
    return connection


def open_folder(run_dir: int, uid: int, *, is_owners: bool) -> LocalFolder:
    """The folder named ``uid`` in an open run directory; ``is_owners``: it has to be that uid's.

    Raises ``UnsafeFileError`` for one of another uid and for what is no folder, and ``OSError``.
    """
    mount = mount_of(run_dir)
    with opened_name(run_dir, str(uid), mount=mount) as name:
        status = os.fstat(name)
        if not stat.S_ISDIR(status.st_mode):
            raise UnsafeFileError("symlink" if stat.S_ISLNK(status.st_mode) else "not_directory", "it is not a folder")
        if is_owners and status.st_uid != uid:
            raise UnsafeFileError("owner", f"the folder belongs to uid {status.st_uid}")
        return LocalFolder(os.open(".", DIRECTORY, dir_fd=name), status.st_uid, mount)


class LocalRunDir(NamedTuple):
    """The ``OpenRunDir`` that this process may open."""

    fd: int
    mount: int

    @classmethod
    def of(cls, fd: int) -> LocalRunDir:
        """Of a descriptor, which is closed with it."""
        try:
            return cls(fd, mount_of(fd))
        except BaseException:
            os.close(fd)
            raise

    def __enter__(self) -> LocalRunDir:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    @property
    def identity(self) -> tuple[int, int]:
        status = os.fstat(self.fd)
        return status.st_dev, status.st_ino

    def uids(self, most: int) -> tuple[dict[str, int], int]:
        listed, entries = {}, 0
        with os.scandir(self.fd) as found:
            for entry in islice(found, most):
                entries += 1
                if is_uid(entry.name):
                    listed[entry.name] = entry.inode()
        return listed, entries

    def look_at(self, name: str) -> Signature:
        return look_at(self.fd, name, mount=self.mount)

    def folder(self, uid: int) -> LocalFolder:
        return open_folder(self.fd, uid, is_owners=False)


def is_uid(name: str) -> bool:
    """Whether a name is a uid as probes write it."""
    return name.isdigit() and name.isascii() and (name[0] != "0" or name == "0") and len(name) <= 10


class LocalNamespace(NamedTuple):
    """The ``EnteredNamespace`` that this process may enter."""

    entered: Entered

    def open(self, path: Path) -> LocalRunDir:
        return LocalRunDir.of(self.entered.open(path))


class LocalOpener(NamedTuple):
    """The ``Opener`` of a process that has the rights itself, or sees its own user's processes alone."""

    proc: Path = Path("/proc")

    def check(self) -> None:
        pass

    def host_folder(self, run_dir: int, path: Path, uid: int) -> LocalFolder:  # noqa: ARG002
        return open_folder(run_dir, uid, is_owners=True)

    @contextmanager
    def entered(self, process: ProcessId, mount_namespace: int) -> Iterator[LocalNamespace]:
        with entered(process, mount_namespace, self.proc) as namespace:
            yield LocalNamespace(namespace)

    def mount_namespace(self, pid: int) -> int:
        return os.stat(f"{self.proc}/{pid}/ns/mnt").st_ino

    def mount_namespaces(self, pids: Sequence[int]) -> Sequence[int | None]:
        return [self._mount_namespace_or_none(pid) for pid in pids]

    def _mount_namespace_or_none(self, pid: int) -> int | None:
        try:
            return self.mount_namespace(pid)
        except OSError:
            return None

    def owner_of_user_namespace(self, pid: int) -> int | None:
        return owner_of_user_namespace(pid, str(self.proc))

    def smaps_rollup(self, pid: int) -> str:
        with opened(f"{self.proc}/{pid}/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC) as fd:
            return os.read(fd, MAX_SMAPS_BYTES).decode(errors="replace")

    def kubelet(self, path: Path) -> sockets.socket:
        with opened(str(path), NAME_ONLY) as found:
            status = os.fstat(found)
            if not stat.S_ISSOCK(status.st_mode) or status.st_uid not in (0, os.geteuid()):
                raise UnsafeFileError("socket", f"{path} is not a socket of root's")
            return connected(found)

    @property
    def settings_owner(self) -> int:
        return os.geteuid()

    def make_settings_folder(self, run_dir: Path) -> None:
        os.close(opened_settings_folder(run_dir, owner=self.settings_owner, make=True))

    def write_settings(self, run_dir: Path, name: str, content: bytes) -> None:
        with self._settings(run_dir) as folder:
            replace_file(name, content, mode=0o644, dir_fd=folder, durable=True)

    def delete_settings(self, run_dir: Path, name: str) -> None:
        with self._settings(run_dir) as folder, suppress(FileNotFoundError, IsADirectoryError):
            os.unlink(name, dir_fd=folder)

    def settings_files(self, run_dir: Path) -> list[str]:
        """Names in the settings folder. Raises as ``write_settings``."""
        with self._settings(run_dir) as folder:
            return os.listdir(folder)

    def _settings(self, run_dir: Path) -> closing_fd:
        return closing_fd(opened_settings_folder(run_dir, owner=self.settings_owner, make=False))


LOCAL = LocalOpener()
"""For whoever is the agent's own user, and for a root agent."""
