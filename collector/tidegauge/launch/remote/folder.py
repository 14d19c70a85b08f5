"""A folder that one other process shares with us for some seconds: a script to it, a word back.

It is that process's user's, and we may be root: so after it was made, everything in it is done relative to the open
folder, and nothing is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Optional

from tidegauge.files import replace_file

SCRIPT, OUTCOME = "script.py", "outcome"
DRAFT = ".new"
"""Follows the name of a file that is being written."""
MAX_OUTCOME_BYTES = 4096
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class SharedFolder:
    """Of mode 0700, with files of mode 0600, all of ``uid``. Gone at the end of a ``with``, unless ``leave()``."""

    def __init__(self, uid: int, gid: int) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="tidegauge-attach-", dir="/tmp"))  # where every process can look
        self._owner = None if uid == os.geteuid() else (uid, gid)
        self._uid = uid
        self._left = False
        self._fd = os.open(self.path, _FOLDER)
        if self._owner is not None:
            os.fchown(self._fd, *self._owner)

    def write(self, text: str) -> Path:
        """Make ``text`` the script, in place of one that is there; its path."""
        replace_file(SCRIPT, text.encode(), dir_fd=self._fd, owner=self._owner)
        return self.path / SCRIPT

    def outcome(self) -> Optional[str]:
        """What the other side has written, or ``None`` as long as there is nothing of it."""
        try:
            fd = os.open(OUTCOME, _READ, dir_fd=self._fd)
        except OSError:
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != self._uid:
                return None
            return os.read(fd, MAX_OUTCOME_BYTES).decode(errors="replace")
        finally:
            os.close(fd)

    def leave(self) -> None:
        """Let it stay: the other side still has the script's name, and takes both away when it comes."""
        self._left = True

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], where: Optional[TracebackType]
    ) -> None:
        with contextlib.suppress(OSError):  # what its user has put there besides is theirs to remove
            if not self._left:
                for name in (SCRIPT, OUTCOME, OUTCOME + DRAFT):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=self._fd)
                os.rmdir(self.path)
        os.close(self._fd)
