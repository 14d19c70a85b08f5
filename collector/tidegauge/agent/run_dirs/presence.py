"""Says that a node agent watches a run directory: it holds a shared lock (flock(2)) on the folder.

``tidegauge run`` judges its own job where nobody does. The lock needs no file, goes with the agent however that ends,
and can be seen by every user of the node; also through a bind mount, but not from a container with a run directory of
its own.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tidegauge.agent.opening.safe_files import DIRECTORY

LOOK_EVERY_S = 5.0


class RunDirMarks:
    """The locks of one agent. For one thread."""

    def __init__(self, run_dirs: Sequence[Path]) -> None:
        self._run_dirs = run_dirs
        self._held: dict[Path, int] = {}
        self._look_s = float("-inf")

    def hold(self, now_s: float) -> None:
        """Lock every run directory that is there; they appear, and may be made anew. Never raises."""
        if now_s - self._look_s < LOOK_EVERY_S:
            return
        self._look_s = now_s
        for path in self._run_dirs:
            held = self._held.get(path)
            if held is not None and not _is_still(path, held):
                os.close(self._held.pop(path))
            if path not in self._held:
                with suppress(OSError):
                    self._held[path] = _locked(path, fcntl.LOCK_SH)

    def close(self) -> None:
        while self._held:
            os.close(self._held.popitem()[1])


def is_watched(run_dirs: Sequence[Path]) -> bool:
    """Whether an agent watches one of these; false where that cannot be found out."""
    return any(map(_is_marked, run_dirs))


def _is_marked(path: Path) -> bool:
    try:
        os.close(_locked(path, fcntl.LOCK_EX))
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def _locked(path: Path, how: int) -> int:
    """A descriptor of the folder with the lock. Raises ``BlockingIOError`` where another has it, and ``OSError``."""
    fd = os.open(path, DIRECTORY)
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _is_still(path: Path, fd: int) -> bool:
    """Whether ``path`` is still the folder of ``fd``."""
    with suppress(OSError):
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(fd))
    return False
