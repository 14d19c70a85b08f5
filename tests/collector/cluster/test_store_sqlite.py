"""The store on SQLite: the contract, and what can go wrong with a file."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler_values import decision
from store_contract import StoreContract, opened
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind, AuditError, Outcome
from tidegauge.core.verdicts import Band

OLD = Path(__file__).parents[2] / "data" / "store"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "a folder & more" / "tidegauge.db"


@pytest.fixture
def url(file: Path) -> str:
    file.parent.mkdir()
    return sqlite_url(file.parent) + "?timeout=0.1"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


class TestStoreOnSqlite(StoreContract):
    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return sqlite_url(tmp_path) + "?timeout=60"  # one of two processes may stand still while it has the lock


def test_commits_are_on_disk_when_they_return_and_readers_do_not_wait(store: Store) -> None:
    with store.database.reading() as connection:
        in_force = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert in_force == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_file_that_another_process_is_just_setting_up_is_waited_for(file: Path) -> None:
    file.parent.mkdir()
    with contextlib.closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")  # not yet in WAL mode: SQLite's own timeout does not hold against this
        done = threading.Timer(0.3, other.execute, args=("COMMIT",))
        done.start()
        store = open_store(sqlite_url(file.parent) + "?timeout=60")
        done.join()
    assert store.audit.action_totals() == {}
    store.close()


def test_a_file_that_stays_taken_is_said_to_be(file: Path, url: str) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process held it for too long"):
            open_store(url)


def test_the_file_is_the_owners_alone(store: Store, file: Path) -> None:
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_database_that_is_locked_is_an_error_for_as_long_as_it_is(store: Store, file: Path) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(AuditError, match=r"could not be written: database is locked; another process"):
        store.audit.write_ahead([decision()])
    assert list(store.audit.each(since_s=0.0)) == [], "reading goes on"
    other.execute("ROLLBACK")
    assert store.audit.write_ahead([decision()]) == [decision()]
    other.close()


def test_a_file_that_was_moved_away_takes_no_writes_until_it_is_back(store: Store, file: Path) -> None:
    store.incidents.save([opened()])
    away = file.with_name("away.db")
    file.rename(away)
    for _ in range(2):
        with pytest.raises(StoreError, match="unable to open database file; its folder must exist"):
            store.audit.write_ahead([decision()])
        with pytest.raises(StoreError):
            store.incidents.open_incidents()
    assert not file.exists(), "no empty database in its place"
    away.rename(file)
    store.audit.write_ahead([decision()])
    assert len(store.incidents.open_incidents()) == 1


def test_a_file_that_was_replaced_by_an_empty_one_is_an_error(store: Store, file: Path) -> None:
    file.write_bytes(b"")
    with pytest.raises(StoreError, match=r"no such table.*restart the coordinator"):
        store.audit.write_ahead([decision()])


def test_a_file_that_is_no_database_is_refused(url: str, file: Path) -> None:
    file.write_text("a diary" * 1000)
    with pytest.raises(StoreError, match=r"tidegauge.db could not be .*: file is not a database"):
        open_store(url)


def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"nowhere/tidegauge.db could not be opened: .*No such file"):
        open_store(sqlite_url(tmp_path / "nowhere"))


def test_a_copy_made_while_it_is_used_is_a_whole_database(store: Store, tmp_path: Path, file: Path) -> None:
    store.incidents.save([opened()])
    with sqlite3.connect(file) as source, sqlite3.connect(tmp_path / "tidegauge.db") as copy:
        source.backup(copy)
    source.close()
    copy.close()
    again = open_store(sqlite_url(tmp_path))
    assert again.incidents.open_incidents() == store.incidents.open_incidents()
    again.close()


@pytest.mark.parametrize("dump", sorted(OLD.glob("*.sql")), ids=lambda dump: dump.stem)
def test_a_database_of_an_earlier_version_is_brought_up_to_date(dump: Path, url: str, file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.executescript(dump.read_text(encoding="utf-8"))
    connection.close()
    store = open_store(url)
    (one,) = store.incidents.open_incidents()
    assert (one.number, one.key.job, one.ranks, store.incidents.next_number()) == (3, JobKey("4711", 0, 1001), (1,), 4)
    assert one.seconds_to_oom == Band(840.0, 1080.0, float("inf"))
    (record,) = store.audit.records_of(3)
    assert (record.decision.action, record.outcome) == (ActionKind.REQUEUE, Outcome.DONE)
    store.incidents.save([opened(4, job=one.key.job._replace(job_id="another"))])
    store.close()


@pytest.mark.parametrize(
    "address",
    ["sqlite://", "sqlite:///relative.db", "mysql://u:secret@h/d", "no address: secret", "sqlite+aiosqlite:////a"],
)
def test_an_address_that_cannot_be_used_is_refused_with_those_that_can(address: str) -> None:
    with pytest.raises(StoreError, match=r"sqlite:////ABSOLUTE/PATH.db or postgresql\+psycopg://") as caught:
        open_store(address)
    assert "secret" not in str(caught.value)


def test_a_timeout_that_is_no_number_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="timeout=soon"):
        open_store(sqlite_url(tmp_path) + "?timeout=soon")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_without_postgresqls_driver_the_message_says_how_to_get_it(
    scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'tidegauge\[postgresql\]'") as caught:
        open_store(f"{scheme}://tidegauge:secret@127.0.0.1/tidegauge")
    assert "secret" not in str(caught.value)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small file system, and not everywhere")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _fill(filler: Path) -> None:
    """Write until the disk takes no more."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 512)


def test_a_full_disk_is_an_error_and_afterwards_everything_is_there(small_disk: Path) -> None:
    store = open_store(sqlite_url(small_disk))
    store.audit.write_ahead([decision(decision_id="before")])
    filler = small_disk / "filler"
    _fill(filler)
    for _ in range(2):
        with pytest.raises(StoreError, match=r"disk is full|disk I/O error|unable to open"):
            store.audit.write_ahead([decision(decision_id="during", reason="x" * 10_000)])
    filler.unlink()
    assert [record.decision.decision_id for record in store.audit.unfinished()] == ["before"]
    store.audit.write_ahead([decision(decision_id="after")])
    assert [record.decision.decision_id for record in store.audit.unfinished()] == ["before", "after"]
    store.close()


def test_a_disk_that_became_read_only_is_an_error_until_it_is_writable_again(small_disk: Path) -> None:
    store = open_store(sqlite_url(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(StoreError, match=r"must (be|exist and be) writable"):
        store.audit.write_ahead([decision()])
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    assert store.audit.write_ahead([decision()]) == [decision()]
    store.close()
