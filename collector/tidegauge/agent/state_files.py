"""Small files of the agent's own below its state directory: written in one step, read back after a restart."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_state(path: Path, content: bytes) -> None:
    """``content`` under ``path``, on disk when this returns; a reader finds the old file or the new one.

    The folder is made where there is none, for its owner only. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.new")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(fd)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def clear_drafts(folder: Path) -> None:
    """Remove what a crash left half written. Raises ``OSError``."""
    for draft in folder.glob("*.new"):
        draft.unlink(missing_ok=True)
