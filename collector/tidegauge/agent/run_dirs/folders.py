"""Run directories and the users' folders in them, as values that can be opened (design 3.2).

A run directory lies in the agent's own mount namespace or in a container's (``containers``); readers of rings, records
and sockets need not know which.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tidegauge.agent.opening.local import LOCAL, LocalRunDir
from tidegauge.agent.opening.port import Opener, OpenFolder, OpenRunDir
from tidegauge.agent.opening.safe_files import DIRECTORY, Signature, UnsafeFileError
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.run_dir_names import DEFAULT_RUN_DIRS

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge attach` finds a process's socket without
    from tidegauge.settings import Settings


class NotNowError(OSError):
    """The tenant has used up its time in this poll (``tenant_time``); a later poll continues."""


class RunDir(Protocol):
    """A folder with one folder per user. Hashable; ``str`` is for people."""

    @property
    def mount_namespaces(self) -> Collection[int] | None:
        """Inodes of the mount namespaces that it belongs to. ``None``: the node's own folder, in which any process of
        the node may write, and where the agent deletes files of ended processes."""

    @property
    def tenant(self) -> Tenant | None:
        """The tenant of all of it, for limits; ``None``: each folder counts to the user that it is named for."""

    def has_time(self) -> bool:
        """Whether to list it now, or further; if false, at a later poll, for the other tenants' sake."""

    def opened(self) -> AbstractContextManager[OpenRunDir]:
        """It, to list it and to look at what is in it. Raises ``FileNotFoundError`` where there is none now,
        ``UnsafeFileError``, ``NotNowError``, and other ``OSError``."""

    def opened_folder(self, uid: int) -> AbstractContextManager[OpenFolder]:
        """The folder named ``uid`` in it. Raises ``UnsafeFileError`` also for one of another uid, and as ``opened``."""


class HostRunDir(NamedTuple):
    """A run directory in the agent's mount namespace. It may not be a link; the folders above it are the admin's."""

    path: Path
    opener: Opener = LOCAL

    @property
    def mount_namespaces(self) -> None:
        return None

    @property
    def tenant(self) -> None:
        return None

    def has_time(self) -> bool:
        return True

    def opened(self) -> LocalRunDir:
        try:
            fd = os.open(self.path, DIRECTORY)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            # A link answers ENOTDIR to O_DIRECTORY | O_NOFOLLOW, like a file.
            reason = "symlink" if self.path.is_symlink() else "not_directory"
            raise UnsafeFileError(reason, f"cannot be listed: {error.strerror}") from error
        return LocalRunDir.of(fd)

    def opened_folder(self, uid: int) -> AbstractContextManager[OpenFolder]:
        with self.opened() as run_dir:
            return self.opener.host_folder(run_dir.fd, self.path, uid)

    def __str__(self) -> str:
        return str(self.path)


class UserFolder(NamedTuple):
    """A user's folder: ``<run dir>/<uid>``."""

    run_dir: RunDir
    uid: int
    """The folder's name: its owner's uid, in a container perhaps that inside its user namespace."""

    @property
    def tenant(self) -> Tenant:
        """The tenant of the folder, for limits."""
        tenant = self.run_dir.tenant
        return Tenant(self.uid) if tenant is None else tenant

    def __str__(self) -> str:
        return f"{self.run_dir}/{self.uid}"


def opened_folder(folder: UserFolder) -> AbstractContextManager[OpenFolder]:
    """A user's folder. Raises as ``RunDir.opened_folder``."""
    return folder.run_dir.opened_folder(folder.uid)


def delete(folder: UserFolder, name: str, signature: Signature, *, socket: str, files: Collection[str] = ()) -> None:
    """Delete what an ended process left (``OpenFolder.delete``), if the folder is there. Raises ``OSError``."""
    with suppress(FileNotFoundError, UnsafeFileError), opened_folder(folder) as there:
        there.delete(name, signature, socket=socket, files=files)


def watched_run_dirs(settings: Settings, environ: Mapping[str, str]) -> list[Path]:
    """The node's run directories that an agent watches; ``TIDEGAUGE_RUN_DIR`` counts where ``settings.run_dir`` is not
    set."""
    return chosen_run_dirs(settings.run_dir or environ.get("TIDEGAUGE_RUN_DIR"))


def chosen_run_dirs(chosen: str | Path | None) -> list[Path]:
    """The run directory that the admin chose, which alone may be a symbolic link, or the node's own two."""
    return [Path(chosen).resolve()] if chosen else [Path(name) for name in DEFAULT_RUN_DIRS]
