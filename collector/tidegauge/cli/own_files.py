"""Files that a command writes for whoever called it: theirs alone, whole or not at all, and where they said."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tidegauge.files import replace_file


def write_own(path: Path, content: bytes) -> None:
    """``content`` as ``path``, mode 0600: stacks and file names are nobody else's business. Raises ``OSError``.

    As ``replace_file``. What is no file but a device or a pipe is written to as it is, and a
    link to one (/dev/stdout) is refused: root would replace it for everybody.
    """
    if _is_special(path):
        if path.is_symlink():
            raise OSError(f"it is a symbolic link to a special file; write to {path.resolve()} instead")
        with open(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as file:
            file.write(content)
        return
    replace_file(path, content)


def _is_special(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
