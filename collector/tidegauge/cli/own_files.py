"""Files that a command writes for whoever called it: theirs alone, whole or not at all, and where they said."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path


def write_own(path: Path, content: bytes) -> None:
    """``content`` as ``path``, mode 0600: stacks and file names are nobody else's business. Raises ``OSError``.

    What has that name is replaced when all is written; a link is replaced too, never followed, so that nobody who
    shares the folder chooses what is overwritten. What is no file but a device or a pipe is written to as it is, and a
    link to one (/dev/stdout) is refused: root would replace it for everybody.
    """
    if _is_special(path):
        if path.is_symlink():
            raise OSError(f"it is a symbolic link to something that is no file; name {path.resolve()} itself")
        with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
            file.write(content)
        return
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file:
            file.write(content)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
