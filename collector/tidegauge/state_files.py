"""Small files of the agent's own below its state directory: written in one step, read back after a restart."""

from __future__ import annotations

from pathlib import Path

from tidegauge.files import DRAFT_SUFFIX, replace_file


def write_state(path: Path, content: bytes) -> None:
    """``content`` under ``path``, on disk when this returns; a reader finds the old file or the new one.

    The folder is made where there is none, for its owner only. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(path, content, durable=True)


def clear_drafts(folder: Path) -> None:
    """Remove what a crash left half written. Raises ``OSError``."""
    for draft in folder.glob(f"*{DRAFT_SUFFIX}"):
        draft.unlink(missing_ok=True)
