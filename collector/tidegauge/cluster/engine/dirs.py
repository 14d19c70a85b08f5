"""The engine's folder and its disk: made empty, removed, and what room there is left."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from pathlib import Path
from typing import IO

from tidegauge.cluster.service_record import NodeSpec

log = logging.getLogger(__name__)


def prepare_engine_dir(path: Path) -> None:
    """An empty folder for Ray: what an engine that died has left there is of no use to the next."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True, mode=0o700)


def remove_engine_dir(spec: NodeSpec) -> None:
    """The engine's folder, and the folder around it where ``choose_engine_dir`` had to make one in /tmp."""
    path = Path(spec.engine_dir)
    shutil.rmtree(path, ignore_errors=True)
    if path.parent != Path(spec.state_dir) and path.parent.name.startswith("tidegauge-"):
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def free_bytes(folder: Path) -> int:
    """What the file system of ``folder`` has left."""
    room = os.statvfs(folder)
    return room.f_bavail * room.f_frsize


def open_log(path: Path) -> IO[str]:
    """What a child is to write to; on a disk that is too full for another file, nothing keeps it."""
    try:
        return path.open("w")
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror or error)
        return Path(os.devnull).open("w")
