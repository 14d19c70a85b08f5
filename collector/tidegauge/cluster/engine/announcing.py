"""Announcing an address on a disk that may be full: again and again in the background until it is written.

An actor whose ``__init__`` fails is not started again by the engine, and nobody would be there once there is room.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from tidegauge.cluster.service_record import write_address

log = logging.getLogger(__name__)

AGAIN_S = 1.0


def announce(path: Path, address: str, *, wait_s: Callable[[float], object] | None = None) -> None:
    """``write_address``, now or as soon as it can be written. Never raises; ``wait_s`` waits between two tries."""
    if not _written(path, address, say=True):
        wait = wait_s or threading.Event().wait
        threading.Thread(
            target=_until_written, args=(path, address, wait), name="tidegauge-announce", daemon=True
        ).start()  # fmt: skip


def _until_written(path: Path, address: str, wait_s: Callable[[float], object]) -> None:
    wait_s(AGAIN_S)
    while not _written(path, address, say=False):
        wait_s(AGAIN_S)
    log.info("%s is now announced in %s", address, path)


def _written(path: Path, address: str, *, say: bool) -> bool:
    try:
        write_address(path, address)
    except OSError as error:
        if say:
            log.warning("%s cannot be announced in %s yet: %s", address, path, error.strerror or error)
        return False
    return True
