"""Databases that earlier services wrote, opened by this one: nothing is lost, all of it can be gone on with."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import upgrade_fixtures as fixtures
from sample_views import job_record
from scheduler_values import decision
from store_contract import opened
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import Outcome
from tidegauge.core.incidents.grades import Grade, GradeAnswer
from tidegauge.core.wire import to_wire
from upgrade_fixtures import WITH_DATABASE, WITH_EVIDENCE

VERSION_NOW = "0008"


@pytest.fixture(params=WITH_DATABASE)
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(release: str, tmp_path: Path) -> Path:
    path = tmp_path / "tidegauge.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(fixtures.database(release))
    return path


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    store = open_store(sqlite_url(file.parent))
    yield store
    store.close()


def told(release: str) -> dict[int, dict[str, Any]]:
    """Incidents as the old API told them last, by number."""
    return {one["number"]: one for one in fixtures.answers(release)["incidents"]["incidents"]}


def test_the_tables_are_brought_up_to_date_once(store: Store, file: Path) -> None:
    open_store(sqlite_url(file.parent)).close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select version_num from tidegauge_schema").fetchall() == [(VERSION_NOW,)]


def test_every_incident_is_there_and_says_what_it_said(release: str, store: Store) -> None:
    said = told(release)
    found = {incident.number: incident for incident in store.incidents.incidents()}
    assert len(said) >= 2, "one of a job that was killed, one of a job that leaked on"
    assert found.keys() == said.keys()
    for number, old in said.items():
        assert unlike(found[number], old) == {}


# What the head of an incident says, of all that the API tells: figures went on between the answer and the end.
HEAD = ("number", "key", "job_name", "user_name", "scheduler", "opened_unix_s", "world_size")


def unlike(incident: Incident, old: Mapping[str, Any]) -> dict[str, tuple[object, object]]:
    """Where they differ, of the fields that do not change while an incident lives and that the old API had."""
    now = to_wire(incident)
    assert isinstance(now, dict)
    return {name: (now[name], old[name]) for name in HEAD if name in old and not says(now[name], old[name])}


def says(now: object, old: object) -> bool:
    if not (isinstance(now, dict) and isinstance(old, dict)):
        return now == old
    return all(name in now and says(now[name], value) for name, value in old.items())


def test_histories_and_decisions_are_whole(release: str, store: Store) -> None:
    for number, page in fixtures.answers(release)["incident"].items():
        history, records = list(store.incidents.lines(int(number))), store.audit.records_of(int(number))
        assert [one.kind.value for one in history][: len(page["history"])] == [one["kind"] for one in page["history"]]
        ids = [record.decision.decision_id for record in records]
        assert ids[: len(page["decisions"])] == [one["decision"]["decision_id"] for one in page["decisions"]]


def test_the_open_one_stays_open_and_numbers_go_on(release: str, store: Store) -> None:
    open_before = {number for number, one in told(release).items() if one["state"] != "closed"}
    assert {incident.number for incident in store.incidents.open_incidents()} <= open_before
    assert store.incidents.next_number() == max(told(release)) + 1
    assert sum(store.incidents.totals().values()) == len(told(release))


def test_new_ones_are_written_beside_the_old_ones(release: str, store: Store) -> None:
    number = store.incidents.next_number()
    store.incidents.save([opened(number=number)])
    wanted = decision()
    assert store.audit.write_ahead([wanted]) == [wanted]
    store.audit.begin(wanted.decision_id, at_s=1.0)
    store.audit.finish(wanted.decision_id, Outcome.DONE, "as before", at_s=2.0)
    assert store.incidents.next_number() == number + 1
    assert len(store.incidents.incidents()) == len(told(release)) + 1


def test_the_newest_time_is_the_old_ones_so_that_the_clock_goes_on_from_there(release: str, store: Store) -> None:
    newest_s = store.newest_s()
    assert newest_s is not None
    assert newest_s >= max(one["opened_unix_s"] for one in told(release).values())


def test_upgraded_database_can_be_pruned(store: Store) -> None:
    closed = [one for one in store.incidents.incidents() if not one.is_open]
    assert store.prune(before_s=1e12) == len(closed)


@pytest.mark.parametrize("release", [name for name in WITH_DATABASE if name not in WITH_EVIDENCE], indirect=True)
def test_a_database_from_before_evidence_has_a_place_for_it(store: Store) -> None:
    assert list(store.evidence.recent(since_s=0.0, limit=10)) == []


@pytest.mark.parametrize("release", WITH_EVIDENCE, indirect=True)
def test_evidence_is_read_back(store: Store) -> None:
    kept = list(store.evidence.recent(since_s=0.0, limit=10))
    assert {one.evidence.job.job_id for one in kept} >= {"second"}
    assert all(one.evidence.growth and one.evidence.cause.advice and len(one.evidence.snapshots) == 2 for one in kept)


def test_an_incident_from_before_grades_takes_an_answer(release: str, store: Store) -> None:
    number, answer = min(told(release)), GradeAnswer(Grade.LEAK, "ada", False, 1.0)
    assert store.grades.answers(number) == ()
    assert store.grades.add(number, answer)
    assert store.grades.answers(number) == (answer,)


def test_a_database_from_before_records_of_jobs_has_a_place_for_them(store: Store) -> None:
    store.jobs.save([job_record()])
    assert list(store.jobs.ended(limit=9)) == [job_record()]


# A database of tomorrow, after a way back.


@pytest.mark.parametrize("release", WITH_DATABASE[-1:], indirect=True)
def test_newer_tables_are_refused_and_not_touched(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("update tidegauge_schema set version_num = '9999'")
        connection.commit()
        before = list(connection.iterdump())
    with pytest.raises(StoreError, match=rf"newer version .*schema 9999, this version supports up to {VERSION_NOW}"):
        open_store(sqlite_url(file.parent))
    with closing(sqlite3.connect(file)) as connection:
        assert list(connection.iterdump()) == before
