"""Snapshot stores: the port, the keys, and the store that is a folder on this node.

A store holds ``core.snapshot_columns`` compressed with zstandard: no pickle. ``remote_store`` is the other one.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from tidegauge.core.ids import JobKey
from tidegauge.core.persons.forgotten import path_part
from tidegauge.core.units import format_bytes

SUFFIX = ".snap.zst"
LEFT_FREE_BYTES = 256 << 20
"""Free space that a snapshot leaves on a node's disk for other uses."""
_DRAFTS = ".drafts"
_KEY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._@=+~-]{0,99}/){4,5}step-[0-9]{1,19}-[0-9]{1,19}" + re.escape(SUFFIX))
"""Keys of four folders are of stores before keys had a uid: still read, and cleared with age."""


class SnapshotStoreError(Exception):
    """A store operation failed. The text is for people and holds no secret."""


class KeyTakenError(SnapshotStoreError):
    """The key exists already."""


class StoredSnapshot(NamedTuple):
    """A snapshot in a store."""

    key: str
    stored_bytes: int
    at_unix_s: float
    """When it was put there."""


class SnapshotStore(Protocol):
    """Keeps snapshots by key. For one thread."""

    @property
    def name(self) -> str:
        """The store's name for people (``SnapshotRef.store``): ``HOST:FOLDER``, or a URL without secrets."""

    def put(self, key: str, content: bytes, *, at_unix_s: float) -> None:
        """Store it, whole or not at all. Raises ``KeyTakenError``, ``SnapshotStoreError``."""

    def get(self, key: str, *, most_bytes: int) -> bytes:
        """The stored content. Raises ``SnapshotStoreError`` where it is missing, or larger than ``most_bytes``."""

    def entries(self) -> tuple[StoredSnapshot, ...]:
        """All snapshots that this node may delete. Raises ``SnapshotStoreError``."""

    def remove(self, key: str) -> None:
        """Delete it, if it is there. Raises ``SnapshotStoreError``."""


def snapshot_key(*, cluster: str, job: JobKey, rank: int, step: int, at_unix_s: float) -> str:
    """``<cluster>/<uid>/<job>/<attempt>/rank-<rank>/step-<step>-<unix ms>.snap.zst``.

    The uid comes from the kernel, the job perhaps from the user: so no user's snapshots lie among another's.
    """
    folder = f"{path_part(cluster)}/{job.uid}/{path_part(job.job_id)}/{job.attempt}/rank-{rank}"
    return f"{folder}/step-{step}-{int(at_unix_s * 1000)}{SUFFIX}"


def check_key(key: str) -> None:
    """Raises ``SnapshotStoreError`` unless it is a key as ``snapshot_key`` makes them."""
    if _KEY.fullmatch(key) is None:
        raise SnapshotStoreError(f"{key[:200]!r} is not a snapshot key")


class FolderStore:
    """A store in a folder of this node, created with the first snapshot; only its owner may read it."""

    def __init__(self, root: Path, *, hostname: str) -> None:
        self._root = root
        self.name = f"{hostname}:{root}"
        self._drafts: Path | None = None

    def put(self, key: str, content: bytes, *, at_unix_s: float) -> None:
        check_key(key)
        with self._store_errors("cannot be written"):
            self._check_room(len(content))
            path = self._root / key
            if path.exists():
                raise KeyTakenError(f"{self.name}: {key} already exists")
            draft = self._draft_folder() / secrets.token_hex(8)
            try:
                _write(draft, content)
                os.utime(draft, (at_unix_s, at_unix_s))
                path.parent.mkdir(parents=True, exist_ok=True)
                draft.rename(path)
            finally:
                draft.unlink(missing_ok=True)

    def get(self, key: str, *, most_bytes: int) -> bytes:
        check_key(key)
        with self._store_errors("cannot be read"), (self._root / key).open("rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise SnapshotStoreError(f"{self.name}: {key} is larger than {format_bytes(most_bytes)}")
        return content

    def entries(self) -> tuple[StoredSnapshot, ...]:
        with self._store_errors("cannot be listed"):
            return tuple(self._listed())

    def remove(self, key: str) -> None:
        check_key(key)
        with self._store_errors("cannot be deleted"):
            path = self._root / key
            path.unlink(missing_ok=True)
            for folder in path.relative_to(self._root).parents:
                if folder != Path("."):
                    with contextlib.suppress(OSError):  # others are in it
                        (self._root / folder).rmdir()

    def _listed(self) -> Iterator[StoredSnapshot]:
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder) / name
                key = str(path.relative_to(self._root))
                if _KEY.fullmatch(key) is not None:
                    status = path.lstat()
                    yield StoredSnapshot(key, status.st_size, status.st_mtime)

    def _check_room(self, needed_bytes: int) -> None:
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        room = os.statvfs(self._root)
        free_bytes = room.f_bavail * room.f_frsize
        if free_bytes - needed_bytes < LEFT_FREE_BYTES:
            raise SnapshotStoreError(
                f"{self.name}: only {format_bytes(free_bytes)} are free on that disk; "
                f"{format_bytes(LEFT_FREE_BYTES)} are reserved for other uses"
            )

    def _draft_folder(self) -> Path:
        """Where files are written before they get their name; cleared once, of what a crash left."""
        if self._drafts is None:
            drafts = self._root / _DRAFTS
            shutil.rmtree(drafts, ignore_errors=True)
            drafts.mkdir(mode=0o700, exist_ok=True)
            self._drafts = drafts
        return self._drafts

    @contextlib.contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SnapshotStoreError(f"{self.name}: {what}: {error.strerror or error}") from error


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd)
