"""Access to the database: engines, transactions, and error messages for people.

A transaction is on disk when ``writing`` has been left without an error. A connection is made for each transaction
(SQLite) or tested before use (PostgreSQL), so that the same object works again after trouble.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tidegauge.core.incidents.actions import AuditError

BUSY_TIMEOUT_S = 5.0
"""How long a transaction waits for another process's: a backup or a slow disk, not a person at a prompt."""
STATEMENT_TIMEOUT_S = 30.0
"""PostgreSQL: no statement of ours is near this long."""
COMPACT_WITHIN_S = 60.0
"""SQLite: how long ``compact`` waits for readers."""
CACHE_KIB = 256
"""Pages of each connection. SQLite's own 2 MiB do not help a connection of one or two statements: the kernel caches the
file."""
ROWS_AT_ONCE = 100
"""Where all rows might not fit into memory."""
LARGE_ROWS_AT_ONCE = 8
"""The same of rows that may be of half a megabyte each."""
_WAL_PAUSE_S = 0.01
_FILE_NAME = "tidegauge.db"
_ACCEPTED = "sqlite:////ABSOLUTE/PATH.db or postgresql+psycopg://USER@HOST/NAME"
_READS = "tidegauge_reads"


class StoreError(AuditError):
    """The database cannot be used, or holds what cannot be read; the message says which and what to do."""


def sqlite_url(state_dir: Path) -> str:
    """The default database: ``tidegauge.db`` in the state directory."""
    return URL.create("sqlite", database=str(state_dir.resolve() / _FILE_NAME)).render_as_string()


class Database:
    """Thread-safe; every method raises ``StoreError``."""

    def __init__(self, url: str) -> None:
        """Opens no connection, but creates a missing file (mode 0600)."""
        parsed = _parsed(url)
        self.name = _name(parsed)
        """For people: the file, or the address without its password."""
        with self._explained("opened"):
            self._engine = (
                _sqlite_engine(parsed) if parsed.get_backend_name() == "sqlite" else _postgresql_engine(parsed)
            )
        self._reads = self._engine.execution_options(**{_READS: True})

    @property
    def dialect(self) -> str:
        return self._engine.dialect.name

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction, committed at the end of the block. On SQLite it holds the write lock from the beginning."""
        with self._explained("written"), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads; on SQLite it waits for no writer."""
        with self._explained("read"), self._reads.begin() as connection:
            yield connection

    def compact(self) -> None:
        """Write all pages anew: what was deleted is gone from the files. Other writers wait meanwhile."""
        with self._explained("compacted"):
            if self.dialect == "postgresql":
                with self._engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.exec_driver_sql("SET statement_timeout = 0")
                    connection.exec_driver_sql("VACUUM")
                return
            raw = self._engine.raw_connection()
            try:
                _compact_sqlite(raw.cursor())
            finally:
                raw.close()

    def close(self) -> None:
        """Release all connections. The object can be used again."""
        self._engine.dispose()

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        try:
            yield
        except IntegrityError as error:
            raise StoreError(
                f"the database {self.name} rejected a write: {_cause(error)}. Is another coordinator writing to "
                "the same database?"
            ) from error
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise StoreError(
                f"the database {self.name} could not be {what}: {_cause(error)}{_advice(error)}"
            ) from error


def _parsed(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        # Not quoted: it may hold a password.
        raise StoreError(f"database_url is not a database address: {_ACCEPTED}") from None
    if parsed.drivername in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername == "sqlite" and parsed.database is not None and os.path.isabs(parsed.database):
        return parsed
    if parsed.drivername != "postgresql+psycopg":
        raise StoreError(f"database_url {_name(parsed)} must be {_ACCEPTED}")
    return parsed


def _name(url: URL) -> str:
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(query={}).render_as_string(hide_password=True)


def _sqlite_engine(url: URL) -> Engine:
    path, timeout_s = str(url.database), _timeout_s(url)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    # mode=rw: a file that was taken away is an error, not an empty database in its place.
    address = f"file:{quote(path)}?mode=rw"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            address, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False
        )
        try:
            # WAL: readers and the writer do not wait for each other. FULL: a commit is on disk when it returns; WAL's
            # own NORMAL may lose the last ones with the power, and what was done to a job must not be forgotten.
            _use_wal(connection, timeout_s)
            for pragma in ("synchronous=FULL", "foreign_keys=ON", f"cache_size=-{CACHE_KIB}"):
                connection.execute(f"PRAGMA {pragma}").close()
        except BaseException:
            connection.close()
            raise
        return connection

    # No pool: an open file outlives its name, and would take writes that nobody ever sees again.
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # IMMEDIATE: one that reads first and writes later could not wait for another writer any more.
        is_read = connection.get_execution_options().get(_READS, False)
        connection.exec_driver_sql("BEGIN" if is_read else "BEGIN IMMEDIATE")

    return engine


def _compact_sqlite(cursor: Any) -> None:
    """Retries, as every reader holds up the pragma that empties the log."""
    give_up_s = time.monotonic() + COMPACT_WITHIN_S
    cursor.execute("VACUUM")
    while cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] != 0:
        if time.monotonic() > give_up_s:
            raise sqlite3.OperationalError("database is locked")
        time.sleep(_WAL_PAUSE_S)


def _use_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Retries, because SQLite's own timeout does not cover this pragma while another process creates the file."""
    give_up_s = time.monotonic() + timeout_s
    while not _is_wal(connection, may_be_busy=time.monotonic() < give_up_s):
        time.sleep(_WAL_PAUSE_S)


def _is_wal(connection: sqlite3.Connection, *, may_be_busy: bool) -> bool:
    try:
        connection.execute("PRAGMA journal_mode=WAL").close()
    except sqlite3.OperationalError as error:
        if may_be_busy and "locked" in str(error):  # errors have codes from Python 3.11 only
            return False
        raise
    return True


def _timeout_s(url: URL) -> float:
    """``?timeout=SECONDS``, for disks on which ``BUSY_TIMEOUT_S`` is not enough."""
    given = url.query.get("timeout", str(BUSY_TIMEOUT_S))
    try:
        return float(str(given))
    except ValueError:
        raise StoreError(f"timeout={given} in database_url is not a number of seconds") from None


def _postgresql_engine(url: URL) -> Engine:
    options = f"-c lock_timeout={int(BUSY_TIMEOUT_S * 1000)} -c statement_timeout={int(STATEMENT_TIMEOUT_S * 1000)}"
    arguments: dict[str, Any] = {
        "connect_timeout": int(BUSY_TIMEOUT_S),
        "options": f"{options} -c synchronous_commit=on",
        "tcp_user_timeout": int(2 * BUSY_TIMEOUT_S * 1000),
    }
    given = {name for name in arguments if name in url.query}
    try:
        return create_engine(
            url,
            connect_args={name: value for name, value in arguments.items() if name not in given},
            pool_pre_ping=True,
        )
    except (ImportError, NoSuchModuleError) as error:
        raise StoreError(
            f"the database {_name(url)} needs PostgreSQL's driver: pip install 'tidegauge[postgresql]'"
        ) from error


def _cause(error: Exception) -> str:
    """The database's own message, first line."""
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    lines = str(original).strip().splitlines()
    return lines[0] if lines else type(original).__name__


_ADVICE = {
    "database is locked": "; another process held it for too long",
    "disk is full": "; free some space on its disk",
    "readonly database": "; its file and folder must be writable",
    "unable to open": "; its folder must exist and be writable, and a file that was moved away must come back",
    "no such table": "; it was emptied or replaced: restart the coordinator to set it up again",
}


def _advice(error: Exception) -> str:
    cause = _cause(error)
    return next((advice for words, advice in _ADVICE.items() if words in cause), "")
