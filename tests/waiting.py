"""Waiting for what another thread or process does: a bound against hanging that decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 100.0
"""What is waited for takes milliseconds; a machine may be a thousand times slower, or stand still for a while."""
_EVERY_S = 0.01

Found = TypeVar("Found")


def eventually(look: Callable[[], Found]) -> Found:
    """What ``look`` returns, once that is true. Raises ``AssertionError`` after ``PATIENCE_S``."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / _EVERY_S)):
        found = look()
        if found:
            return found
        pause.wait(_EVERY_S)
    raise AssertionError(f"it did not come true in {PATIENCE_S:.0f} s")
