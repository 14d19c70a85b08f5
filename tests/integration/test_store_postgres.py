"""The store on a real PostgreSQL: the contract, and a server that goes away and comes back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from integration.needs import missing
from integration.postgres_server import PostgresServer, postgres_binaries, running_postgres
from person_data import ADA, BOB
from person_search import places_of
from person_state import prepare
from scheduler_values import decision
from store_contract import StoreContract, all_texts, opened
from tidegauge.cli.main import main
from tidegauge.cluster.store import Store, StoreError, open_store
from tidegauge.core.incidents.actions import AuditError

pytestmark = pytest.mark.timeout(400)

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    binaries = postgres_binaries()
    if binaries is None:
        missing("PostgreSQL's server is not installed, or there is no user postgres to run it as")
    with running_postgres(binaries) as running:
        yield running


@pytest.fixture
def database(server: PostgresServer) -> str:
    return f"tidegauge {next(_numbers)}"


@pytest.fixture
def url(server: PostgresServer, database: str) -> str:
    return server.new_database(database)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    yield store
    store.close()


class TestStoreOnPostgres(StoreContract):
    @pytest.fixture
    def url(self, server: PostgresServer, database: str) -> str:
        # One of two processes may stand still while it has the lock.
        return server.new_database(database) + "&options=-c%20lock_timeout%3D60000"


def test_commits_are_on_disk_when_they_return_whatever_the_server_is_set_to(
    server: PostgresServer, database: str, url: str
) -> None:
    server.sql(f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    store = open_store(url)
    with store.database.reading() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
    store.close()


def test_a_server_that_is_away_is_an_error_until_it_is_back(
    server: PostgresServer, store: Store, database: str
) -> None:
    store.incidents.save([opened()])
    server.stop()
    try:
        for _ in range(2):
            with pytest.raises(AuditError, match=f"postgres.*{database}.* could not be written") as caught:
                store.audit.write_ahead([decision()])
            assert "\n" not in str(caught.value)
    finally:
        server.start()
    assert store.audit.write_ahead([decision()]) == [decision()]
    assert len(store.incidents.open_incidents()) == 1


def test_a_table_that_is_locked_is_an_error_for_as_long_as_it_is(
    server: PostgresServer, url: str, database: str
) -> None:
    store = open_store(f"{url}&options=-c%20lock_timeout%3D100")
    with psycopg.connect(host=str(server.folder), user="postgres", dbname=database) as other:
        other.execute("LOCK TABLE decisions")
        with pytest.raises(StoreError, match="lock timeout"):
            store.audit.write_ahead([decision()])
        other.rollback()
    assert store.audit.write_ahead([decision()]) == [decision()]
    store.close()


def test_a_database_that_is_not_there_is_an_error_that_names_it(server: PostgresServer) -> None:
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        open_store(server.url("nowhere"))


def test_the_plain_scheme_is_understood(url: str) -> None:
    store = open_store(url.replace("postgresql+psycopg", "postgresql"))
    assert store.incidents.open_incidents() == []
    store.close()


def test_tables_of_somebody_else_are_left_alone(server: PostgresServer, database: str, url: str) -> None:
    server.sql("CREATE TABLE incidents (what text)", database=database)
    with pytest.raises(StoreError, match="already exists"):
        open_store(url)
    server.sql("DROP TABLE incidents", database=database)
    open_store(url).close()


def test_a_forgotten_user_is_in_no_row_and_no_file(url: str, tmp_path: Path) -> None:
    files = prepare(tmp_path / "state", database_url=url)
    assert main(["forget", ADA.name, "--yes", "--set", f"state_dir={files.root}"]) == 0
    assert places_of(ADA.words, files.root) == []
    store = open_store(url)
    rows = all_texts(store)
    store.close()
    assert not any(word in rows for word in ADA.words)
    assert all(word in rows for word in BOB.words)
