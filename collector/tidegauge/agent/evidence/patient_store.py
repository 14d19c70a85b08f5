"""A timeout around a snapshot store: a bucket behind a dead network blocks nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from tidegauge.agent.evidence.retention import StoredSnapshot
from tidegauge.agent.evidence.snapshot_store import SnapshotStore, SnapshotStoreError
from tidegauge.core.units import format_duration

T = TypeVar("T")

PATIENCE_S = 60.0
"""For one snapshot of some megabytes: far more than a bucket takes that answers at all."""


class PatientStore:
    """``store`` with a timeout; each call runs in a daemon thread. While one hangs, others fail at once."""

    def __init__(self, store: SnapshotStore, patience_s: float = PATIENCE_S) -> None:
        self._store = store
        self._patience_s = patience_s
        self._last: threading.Thread | None = None

    @property
    def name(self) -> str:
        return self._store.name

    def put(self, key: str, content: bytes, *, at_unix_s: float) -> None:
        self._in_time(lambda: self._store.put(key, content, at_unix_s=at_unix_s))

    def get(self, key: str, *, most_bytes: int) -> bytes:
        return self._in_time(lambda: self._store.get(key, most_bytes=most_bytes))

    def entries(self) -> tuple[StoredSnapshot, ...]:
        return self._in_time(self._store.entries)

    def remove(self, key: str) -> None:
        self._in_time(lambda: self._store.remove(key))

    def _in_time(self, call: Callable[[], T]) -> T:
        if self._last is not None and self._last.is_alive():
            raise SnapshotStoreError(f"{self.name} does not answer")
        answers: list[T] = []
        failures: list[Exception] = []

        def work() -> None:
            try:
                answers.append(call())
            except Exception as error:
                failures.append(error)

        self._last = threading.Thread(target=work, name="tidegauge-store", daemon=True)
        self._last.start()
        self._last.join(self._patience_s)
        if failures:
            raise failures[0]
        if not answers:
            raise SnapshotStoreError(f"{self.name} did not answer within {format_duration(self._patience_s)}")
        return answers[0]
