"""Replaces files in one step: a reader finds the old file or the new one, never a part.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Optional, Union

DRAFT_SUFFIX = ".new"
"""Of what only a process that was killed leaves behind."""
_MAX_STEM_CHARS = 48
_TRIED_BYTES = 1 << 12
_DRAFT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(
    path: Union[str, os.PathLike[str]],
    content: bytes,
    *,
    mode: int = 0o600,
    dir_fd: Optional[int] = None,
    owner: Optional[tuple[int, int]] = None,
    durable: bool = False,
) -> None:
    """Make ``content`` the file ``path``. Raises ``OSError`` that names ``path``; the file that was there is then as it
    was.

    A symbolic link of that name is replaced and never followed: nobody who shares the folder chooses what is written.
    ``mode`` holds whatever the umask is. ``path`` is relative to the folder ``dir_fd``, if that is given. ``owner``:
    user and group, which root alone may choose. ``durable``: the content is on disk (fsync(2)) when this returns.
    """
    folder, name = os.path.split(os.fspath(path))
    draft = os.path.join(folder, f"{name[:_MAX_STEM_CHARS]}.{secrets.token_hex(4)}{DRAFT_SUFFIX}")
    try:
        fd = os.open(draft, _DRAFT, 0o600, dir_fd=dir_fd)
        try:
            with os.fdopen(fd, "wb") as file:
                if owner is not None:
                    os.fchown(fd, *owner)
                os.fchmod(fd, mode)
                file.write(content)
                if durable:
                    file.flush()
                    os.fsync(fd)
            os.replace(draft, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(draft, dir_fd=dir_fd)
            raise
    except OSError as error:  # a write names no file, and nobody knows the draft's name
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def why_unwritable(folder: Path) -> Optional[str]:
    """Why no file can be written to ``folder`` now, in the kernel's words; ``None``: one can. Leaves nothing there."""
    try:
        room = os.statvfs(folder)
        if room.f_blocks and room.f_bavail * room.f_frsize < _TRIED_BYTES:  # root may have more than the owner
            return os.strerror(errno.ENOSPC)
        if room.f_files and not room.f_favail:
            return f"{os.strerror(errno.ENOSPC)}: it has as many files as it can (df -i)"
        with tempfile.TemporaryFile(dir=folder, buffering=0) as tried:
            tried.write(bytes(_TRIED_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return None


def owner_for_root(folder: Path) -> Optional[tuple[int, int]]:
    """The ``owner`` of a file that root writes into the folder of another user's service; ``None`` for other users."""
    if os.geteuid() != 0:
        return None
    status = folder.stat()
    return status.st_uid, status.st_gid


def chown_for_root(path: Path) -> None:
    """Give a file that root has written to the owner of its folder; as another user, nothing. Raises ``OSError``."""
    owner = owner_for_root(path.parent)
    if owner is not None:
        os.chown(path, *owner, follow_symlinks=False)


def write_state(path: Path, content: bytes) -> None:
    """Write ``content`` durably under ``path``; a reader finds the old file or the new one.

    Creates the folder, for its owner only. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, content, durable=True)


def clear_drafts(folder: Path) -> None:
    """Remove drafts that a crash left behind. Raises ``OSError``."""
    for draft in folder.glob(f"*{DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)
