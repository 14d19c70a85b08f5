"""Calls of schedulers in other threads, one at a time for each scheduler."""

from __future__ import annotations

import threading
from collections.abc import Callable


class OneCallEach:
    """Thread-safe. ``submit`` runs a call in another thread, some time soon."""

    def __init__(self, submit: Callable[[Callable[[], None]], object]) -> None:
        self._submit = submit
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def is_free(self, name: str) -> bool:
        """Whether no call of this scheduler waits or is under way."""
        with self._lock:
            return name not in self._busy

    def submit(self, name: str, call: Callable[[], None]) -> None:
        def run() -> None:
            try:
                call()
            finally:
                with self._lock:
                    self._busy.discard(name)

        with self._lock:
            self._busy.add(name)
        self._submit(run)
