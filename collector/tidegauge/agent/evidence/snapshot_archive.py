"""Adds snapshots to the node's store and deletes old ones, by size, age and which ones incidents refer to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from tidegauge.agent.evidence.budget import EvidenceBudget
from tidegauge.agent.evidence.making import job_of
from tidegauge.agent.evidence.snapshot_store import (
    KeyTakenError,
    SnapshotStore,
    SnapshotStoreError,
    StoredSnapshot,
    snapshot_key,
)
from tidegauge.analysis.snapshots.reading import write_packed
from tidegauge.core.evidence import SnapshotRef
from tidegauge.core.persons.forgotten import Forgotten
from tidegauge.core.units import format_bytes
from tidegauge.core.views import RankView

_log = logging.getLogger(__name__)

OWNER_PARTS = 2
"""Of a key: uid and job."""
TRIES = 5
"""Tries to find a free key: the time in it is the snapshot's claim, which another may share."""


def what_to_delete(
    entries: Iterable[StoredSnapshot],
    *,
    now_unix_s: float,
    keep_s: float | None,
    keep_bytes: int,
    protected: Collection[str],
) -> tuple[str, ...]:
    """Keys of snapshots to delete, the oldest first.

    Those older than ``keep_s`` (``None``: age is no reason now), and then as many as it takes for the rest to have at
    most ``keep_bytes``. ``protected`` keys stay, whatever their age and size.
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


def _is_forgotten(entry: StoredSnapshot, forgotten: Iterable[Forgotten]) -> bool:
    """Keys of before there was a uid in them say nothing of a person; they go with age."""
    _, *owner, _, _, _ = entry.key.split("/")
    if len(owner) < OWNER_PARTS or not owner[0].isdecimal():
        return False
    return any(one.has(int(owner[0]), owner[1], entry.at_unix_s) for one in forgotten)


class Keeping(NamedTuple):
    """Retention limits of this node."""

    keep_s: float
    keep_bytes: int


class SnapshotArchive:
    """One node's access to a store. For one thread. ``store=None``: there is none, for the reason ``problem``."""

    def __init__(
        self,
        store: SnapshotStore | None,
        keeping: Keeping,
        budget: EvidenceBudget,
        *,
        cluster: str,
        problem: str = "",
        steady_unix_s: Callable[[], float] | None = None,
    ) -> None:
        """``steady_unix_s``: the clock by which snapshots age, instead of the callers' time: the host's clock may be
        set, and must not make all of them old at once."""
        self._steady_unix_s = steady_unix_s
        self._store = store
        self._keeping = keeping
        self._budget = budget
        self._cluster = cluster
        self._problem = problem
        self.works = store is not None
        """Whether the store's last operation succeeded."""

    def keep(
        self,
        view: RankView,
        content: bytes,
        *,
        step: int,
        at_unix_s: float,
        now_s: float,
        now_unix_s: float,
        protected: Collection[str],
    ) -> SnapshotRef:
        """Compress and store ``core.snapshot_columns`` of one rank. ``protected``: keys that room is not made of.

        ``now_s`` is a monotonic clock. Raises ``SnapshotStoreError``.
        """
        if self._store is None:
            raise SnapshotStoreError(self._problem)
        stored = write_packed([content])
        if not self._budget.store(tenant := view.tenant, len(stored), now_s):
            raise SnapshotStoreError(f"the ranks of {tenant} have reached the hourly limit of stored snapshots")
        put_unix_s = self._ages_by(now_unix_s)
        with self._health_logged(self._store):
            self._make_room(self._store, len(stored), now_unix_s=put_unix_s, protected=protected)
            return self._put(self._store, view, stored, step=step, at_unix_s=at_unix_s, now_unix_s=put_unix_s)

    def keys(self) -> frozenset[str]:
        """Keys of all stored snapshots; none of a store that cannot be listed, from which nothing is deleted either."""
        if self._store is None:
            return frozenset()
        try:
            return frozenset(entry.key for entry in self._store.entries())
        except SnapshotStoreError:
            return frozenset()

    def tidy(self, *, now_unix_s: float, wanted: Collection[str] | None, protected: Collection[str]) -> None:
        """Delete snapshots that are too old or too many. ``wanted``: keys that open incidents refer to; ``None``:
        unknown now, and then age alone is no reason."""
        if self._store is None:
            return
        keep_s, keep_bytes = self._keeping
        with suppress(SnapshotStoreError), self._health_logged(self._store):
            self._delete(
                self._store, keep_s=None if wanted is None else keep_s, keep_bytes=keep_bytes,
                now_unix_s=self._ages_by(now_unix_s), protected={*protected, *(wanted or ())},
            )  # fmt: skip

    def forget(self, forgotten: Collection[Forgotten]) -> None:
        """Delete snapshots of forgotten persons, whoever refers to them. Raises ``SnapshotStoreError``."""
        if self._store is None or not forgotten:
            return
        with self._health_logged(self._store):
            gone = [entry.key for entry in self._store.entries() if _is_forgotten(entry, forgotten)]
            for key in gone:
                self._store.remove(key)
        if gone:
            _log.info("deleted %d snapshots of a user who is forgotten", len(gone))

    def _ages_by(self, now_unix_s: float) -> float:
        return now_unix_s if self._steady_unix_s is None else self._steady_unix_s()

    def _put(
        self, store: SnapshotStore, view: RankView, stored: bytes, *, step: int, at_unix_s: float, now_unix_s: float
    ) -> SnapshotRef:
        for at_s in (at_unix_s, *(now_unix_s + later_ms / 1000 for later_ms in range(TRIES))):
            key = snapshot_key(
                cluster=self._cluster, job=job_of(view), rank=int(view.identity.rank), step=step, at_unix_s=at_s
            )
            try:
                store.put(key, stored, at_unix_s=now_unix_s)
            except KeyTakenError:
                continue
            return SnapshotRef(key, store.name, step, at_unix_s, len(stored))
        raise SnapshotStoreError(f"{store.name}: every key for step {step} is in use")

    def _make_room(
        self, store: SnapshotStore, needed_bytes: int, *, now_unix_s: float, protected: Collection[str]
    ) -> None:
        room = self._keeping.keep_bytes
        left_bytes = self._delete(
            store, keep_s=None, keep_bytes=room - needed_bytes, now_unix_s=now_unix_s, protected=protected
        )  # fmt: skip
        if left_bytes + needed_bytes > room:
            raise SnapshotStoreError(
                f"{store.name}: {format_bytes(left_bytes)} of the {format_bytes(room)} for snapshots of this node "
                "(keep_snapshots_gib) are in use by open incidents"
            )

    @contextmanager
    def _health_logged(self, store: SnapshotStore) -> Iterator[None]:
        """Log a failure of the store when it begins and when it ends."""
        try:
            yield
        except SnapshotStoreError as error:
            if self.works:
                _log.warning("snapshots cannot be stored properly: %s", error)
            self.works = False
            raise
        if not self.works:
            _log.info("%s works again", store.name)
        self.works = True

    @staticmethod
    def _delete(
        store: SnapshotStore, *, keep_s: float | None, keep_bytes: int, now_unix_s: float, protected: Collection[str]
    ) -> int:
        """Delete by ``what_to_delete``; the bytes that are left."""
        entries = store.entries()
        sizes = {entry.key: entry.stored_bytes for entry in entries}
        for key in what_to_delete(
            entries, now_unix_s=now_unix_s, keep_s=keep_s, keep_bytes=keep_bytes, protected=protected
        ):  # fmt: skip
            store.remove(key)
            _log.info("deleted snapshot %s", key)
            del sizes[key]
        return sum(sizes.values())
