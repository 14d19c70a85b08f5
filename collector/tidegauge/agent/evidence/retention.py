"""Snapshot retention: selects which to delete, by age and total size; the oldest first, never one still needed."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple


class StoredSnapshot(NamedTuple):
    """A snapshot in a store."""

    key: str
    stored_bytes: int
    at_unix_s: float
    """When it was put there."""


def what_to_delete(
    entries: Iterable[StoredSnapshot],
    *,
    now_unix_s: float,
    keep_s: float | None,
    keep_bytes: int,
    protected: Collection[str],
) -> tuple[str, ...]:
    """Keys, in the order in which they go: the oldest first.

    Those older than ``keep_s`` go (``None``: age is no reason now), and then as many as it takes for all that is left
    to have ``keep_bytes`` at most. What is ``protected`` stays, whatever its age and however much room it takes.
    """
    oldest_first = sorted(entries, key=lambda entry: (entry.at_unix_s, entry.key))
    left_bytes = sum(entry.stored_bytes for entry in oldest_first)
    gone: list[str] = []
    for entry in oldest_first:
        too_old = keep_s is not None and now_unix_s - entry.at_unix_s > keep_s
        if entry.key not in protected and (too_old or left_bytes > keep_bytes):
            gone.append(entry.key)
            left_bytes -= entry.stored_bytes
    return tuple(gone)
