"""The port through which the agent acts on what is other users': all that it needs rights for (ADR 33).

``local.LocalOpener`` does it with this process's own rights.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from tidegauge.agent.opening.safe_files import Signature
from tidegauge.core.ids import ProcessId


class OpenFolder(Protocol):
    """A user's folder in a run directory, held open until the end of a ``with``. Every name is one component; none is
    followed if it is a link."""

    def __enter__(self) -> OpenFolder: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def uid(self) -> int:
        """Its owner, by the kernel."""

    def names(self, most: int) -> list[str]:
        """The first ``most`` names in it. Raises ``OSError``."""

    def look_at(self, name: str) -> Signature:
        """State of the file itself, never of a link's target. Raises ``UnsafeFileError`` for what is mounted there, and
        ``OSError``."""

    def open_checked(self, name: str) -> tuple[int, Signature]:
        """A descriptor to read a regular file of the folder's owner with one name, so never a FIFO or a device; the
        caller closes it. Raises ``UnsafeFileError`` for any other, and ``OSError``."""

    def connected(self, name: str, process: ProcessId, uid: int) -> socket.socket:
        """A connection to a command socket of ``uid``, who has to be the folder's owner; the caller closes it, and asks
        the kernel who listens. Raises ``UnsafeFileError`` for what is no such socket with one name, and ``OSError``,
        ``BlockingIOError`` when too many wait there.
        """

    def delete(self, name: str, signature: Signature, *, socket: str, files: Collection[str]) -> None:
        """Delete a file, if it still is the one with this signature, and a socket and regular files beside it, if the
        folder's owner owns them. Raises ``OSError``."""


class OpenRunDir(Protocol):
    """A run directory, held open until the end of a ``with``, or what it was a moment ago."""

    def __enter__(self) -> OpenRunDir: ...

    def __exit__(self, *_: object) -> None: ...

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode."""

    def uids(self, most: int) -> tuple[dict[str, int], int]:
        """Of the first ``most`` names in it those that are uids, with their inodes, and how many it has of any kind, at
        most ``most``. Raises ``OSError``."""

    def look_at(self, name: str) -> Signature:
        """Mode, owner, inode and mtime of a name that is a uid; failures as ``OpenFolder.look_at``."""

    def folder(self, uid: int) -> OpenFolder:
        """The folder named ``uid`` in the run directory of a container, whoever owns it. Raises ``UnsafeFileError`` and
        ``OSError``, ``FileNotFoundError`` also where the run directory is another by now."""


class EnteredNamespace(Protocol):
    """The mount namespace of a process."""

    def open(self, path: Path) -> OpenRunDir:
        """The folder ``path`` as the process sees it.

        Raises ``FileNotFoundError`` where there is no such folder, ``UnsafeFileError``, and other ``OSError``.
        """


class Opener(Protocol):
    """For any thread."""

    def check(self) -> None:
        """Raises ``OSError`` while it can do none of this."""

    def host_folder(self, run_dir: int, path: Path, uid: int) -> OpenFolder:
        """The folder of ``uid`` in the run directory ``path`` of this node, of which ``run_dir`` is a descriptor.
        Raises ``UnsafeFileError`` for one of another uid, and ``OSError``."""

    def entered(self, process: ProcessId, mount_namespace: int) -> AbstractContextManager[EnteredNamespace]:
        """A mount namespace (its inode) by way of a process. Raises ``ProcessLookupError`` if that has ended or left
        it, and other ``OSError``."""

    def mount_namespace(self, pid: int) -> int:
        """Inode of the process's mount namespace. Raises ``OSError``."""

    def mount_namespaces(self, pids: Sequence[int]) -> Sequence[int | None]:
        """The same of many; ``None`` where a process has ended, or cannot be looked into."""

    def owner_of_user_namespace(self, pid: int) -> int | None:
        """Uid that made a process's outermost user namespace below ours; ``None``: it is in ours, has ended, or cannot
        be looked into."""

    def smaps_rollup(self, pid: int) -> str:
        """``/proc/PID/smaps_rollup``. Raises ``OSError``."""

    def kubelet(self, path: Path) -> socket.socket:
        """A connection to the kubelet's pod-resources socket, which the caller closes: at ``path``, or where an opener
        in a process of its own was told that it is. Raises ``FileNotFoundError`` where there is none,
        ``UnsafeFileError`` for what is no socket of root's or of this process's user, and other ``OSError``."""

    @property
    def settings_owner(self) -> int:
        """Whose the files of ``write_settings`` are: a uid."""

    def make_settings_folder(self, run_dir: Path) -> None:
        """Make ``<run dir>/jobs``, ours and writable for nobody else. Raises ``OSError`` and ``UnsafeFileError``."""

    def write_settings(self, run_dir: Path, name: str, content: bytes) -> None:
        """Make ``content`` the file ``name`` there, for all to read. Raises ``OSError`` and ``UnsafeFileError``."""

    def delete_settings(self, run_dir: Path, name: str) -> None:
        """Delete the file ``name`` there, if it is one. Raises ``OSError`` and ``UnsafeFileError``."""
