"""Snapshot store at any URL that fsspec supports: S3, GCS, Azure, a shared file system; no other module imports fsspec.

Several nodes share one store; each deletes only its own snapshots, which an index on the node lists.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tidegauge.agent.evidence.snapshot_store import (
    FolderStore,
    KeyTakenError,
    SnapshotStore,
    SnapshotStoreError,
    StoredSnapshot,
    check_key,
)
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes, format_duration
from tidegauge.files import write_state

if TYPE_CHECKING:  # it needs pydantic, and `tidegauge run` judges without
    from tidegauge.settings import Settings

T = TypeVar("T")

EVIDENCE_FOLDER = "evidence"
SNAPSHOT_FOLDER = "snapshots"
WHOLE_AT_ONCE = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "memory"})
"""Schemes where an object appears only when it is complete; others get a draft that is renamed."""
PATIENCE_S = 60.0
"""For one snapshot of some megabytes: far more than a bucket takes that answers at all."""


def public_name(url: str) -> str:
    """``url`` without a password and without what follows ``?``, for people and logs."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class RemoteStore:
    """Connects on first use. ``index_folder``: a folder of this node, for the index of what it stored."""

    def __init__(self, url: str, index_folder: Path) -> None:
        self._url = url
        self.name = public_name(url)
        self._index = index_folder / f"stored-{hashlib.sha256(self.name.encode()).hexdigest()[:12]}.json"
        self._stored: dict[str, StoredSnapshot] | None = None
        self._system: Any = None
        self._root = ""

    def check_driver(self) -> None:
        """Find the driver without connecting. Raises ``SnapshotStoreError`` that names the package that is missing."""
        scheme = urlsplit(self._url).scheme
        try:
            import fsspec
            from fsspec.registry import known_implementations
        except ImportError as error:
            raise SnapshotStoreError(f"{self.name} needs fsspec: pip install 'tidegauge[agent]'") from error
        try:
            fsspec.get_filesystem_class(scheme)
        except ValueError as error:
            raise SnapshotStoreError(f"{self.name}: fsspec does not support {scheme}://") from error
        except ImportError as error:
            package = str(known_implementations[scheme]["class"]).partition(".")[0]
            raise SnapshotStoreError(
                f"{self.name} needs the Python package {package}, which is not installed here: pip install {package}"
            ) from error

    def put(self, key: str, content: bytes, *, at_unix_s: float) -> None:
        path = self._path(key)
        with self._store_errors("could not be written"):
            if self._system.exists(path):
                raise KeyTakenError(f"{self.name}: {key} already exists")
            # First, so that a crash leaves no snapshot that the index does not list.
            self._save({**self._own(), key: StoredSnapshot(key, len(content), at_unix_s)})
            if urlsplit(self._url).scheme in WHOLE_AT_ONCE:
                self._system.pipe_file(path, content)
                return
            self._system.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._system.pipe_file(f"{path}.new", content)
            self._system.mv(f"{path}.new", path)

    def get(self, key: str, *, most_bytes: int) -> bytes:
        path = self._path(key)
        with self._store_errors("could not be read"):
            content: bytes = self._system.cat_file(path, start=0, end=most_bytes + 1)
        if len(content) > most_bytes:
            raise SnapshotStoreError(f"{self.name}: {key} is larger than {format_bytes(most_bytes)}")
        return content

    def entries(self) -> tuple[StoredSnapshot, ...]:
        with self._store_errors("could not be listed"):
            return tuple(self._own().values())

    def remove(self, key: str) -> None:
        path = self._path(key)
        with self._store_errors("could not be deleted"):
            with contextlib.suppress(FileNotFoundError):
                self._system.rm_file(path)
            self._save({own: entry for own, entry in self._own().items() if own != key})

    def _path(self, key: str) -> str:
        check_key(key)
        if self._system is None:
            self.check_driver()
            import fsspec

            with self._store_errors("could not be reached"):
                self._system, self._root = fsspec.core.url_to_fs(self._url)
        return f"{self._root.rstrip('/')}/{key}"

    def _own(self) -> dict[str, StoredSnapshot]:
        if self._stored is None:
            self._stored = _read_index(self._index)
        return self._stored

    def _save(self, stored: dict[str, StoredSnapshot]) -> None:
        write_state(self._index, json.dumps([list(entry) for entry in stored.values()]).encode())
        self._stored = stored

    @contextlib.contextmanager
    def _store_errors(self, what: str) -> Iterator[None]:
        """Turn any error of a driver into ``SnapshotStoreError``, without the URL's secrets, which drivers quote."""
        try:
            yield
        except (SnapshotStoreError, ImportError):
            raise
        except Exception as error:
            said = str(error).replace(self._url, self.name)
            for secret in _secrets(self._url):
                said = said.replace(secret, "***")
            raise SnapshotStoreError(f"{self.name}: {what}: {type(error).__name__}: {one_line(said, 300)}") from None


def _secrets(url: str) -> list[str]:
    parts = urlsplit(url)
    return [secret for secret in (parts.password, parts.query) if secret]


def _read_index(path: Path) -> dict[str, StoredSnapshot]:
    """The entries of the index; none where it is missing or damaged, and then nothing in the store is deleted."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        rows = [StoredSnapshot(str(key), int(size), float(at)) for key, size, at in json.loads(path.read_bytes())]
        return {row.key: row for row in rows}
    return {}


class PatientStore:
    """``store`` with a timeout: a bucket behind a dead network blocks nobody. Each call runs in a daemon thread; while
    one hangs, others fail at once."""

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


def open_store(settings: Settings, *, hostname: str) -> SnapshotStore:
    """This node's snapshot store. Nothing is made or reached before the first snapshot.

    Raises ``SnapshotStoreError`` where the driver for its URL is not installed.
    """
    where = settings.snapshot_store
    if where is None or "://" not in where:
        folder = settings.state_dir / SNAPSHOT_FOLDER if where is None else Path(where).expanduser().absolute()
        return FolderStore(folder, hostname=hostname)
    store = RemoteStore(where, settings.state_dir / EVIDENCE_FOLDER)
    store.check_driver()
    return PatientStore(store)
