"""Small file systems that can be filled to the last byte: a tmpfs each, as /dev/shm is one. Takes root."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from integration.needs import missing

FILLER = "filler"
_PIECE_BYTES = 1 << 16
_ROUNDS = 20


@contextlib.contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A tmpfs of this size at ``folder``, which is made; taken away with all that is on it, in use or not."""
    if os.geteuid() != 0:
        missing("a file system of one's own takes root")
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},mode=1777"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tidegauge-test", str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        missing(f"no file system can be mounted here: {made.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: a process of the test that still has a file open there must not leave the mount behind.
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def fill(folder: Path) -> None:
    """Take every byte that is left on the file system of ``folder``; what others delete meanwhile too."""
    fd = os.open(folder / FILLER, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(_ROUNDS):
            piece_bytes = _PIECE_BYTES
            while piece_bytes:
                if _written(fd, piece_bytes) < piece_bytes:
                    piece_bytes //= 2
            if free_bytes(folder) == 0:
                return
    finally:
        os.close(fd)
    raise AssertionError(f"{free_bytes(folder)} bytes are free on a disk that was filled {_ROUNDS} times")


def _written(fd: int, size_bytes: int) -> int:
    try:
        return os.write(fd, b"\0" * size_bytes)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return 0


def make_room(folder: Path) -> None:
    """Undo ``fill``."""
    (folder / FILLER).unlink(missing_ok=True)


def free_bytes(folder: Path) -> int:
    """What anybody but root has left there."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize
