"""How SQLite answers what is asked every second or on every scrape: by an index, never through the history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, event

from sample_views import NOW_S, job_record
from scheduler_values import JOB
from tidegauge.cluster.store import Store, open_store
from tidegauge.cluster.store.tables import metadata
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.job_records.search import RecordFilter, RecordSought

ASKED_OFTEN: dict[str, Callable[[Store], object]] = {
    "unfinished": lambda store: store.audit.unfinished(),
    "action_totals": lambda store: store.audit.action_totals(),
    "last_finished": lambda store: store.audit.last_finished([JOB], since_s=NOW_S),
    "records_of": lambda store: store.audit.records_of(1),
    "open_incidents": lambda store: store.incidents.open_incidents(),
    "open_figures": lambda store: store.incidents.open_figures([JOB]),
    "totals": lambda store: store.incidents.totals(),
    "marks": lambda store: store.incidents.marks(since_s=NOW_S, limit=10),
    "lines": lambda store: list(store.incidents.lines(1, most=10, most_figures=10)),
    "count_left_out": lambda store: store.incidents.count_left_out(1, most=10, most_figures=10),
    "acts": lambda store: store.acts.of_incident(1),
    "exemptions": lambda store: store.acts.exemptions(now_s=NOW_S),
    "answers": lambda store: store.grades.answers(1),
    "open_among": lambda store: store.evidence.open_among([JOB]),
    "has_owner": lambda store: store.incidents.has_owner(JOB, "ada"),
    "of_job": lambda store: store.incidents.of_job(JOB, limit=10),
}
NARROW = {
    "user": RecordFilter(user_name="u7"),
    "user and end": RecordFilter(user_name="u7", how=JobEnd.OOM),
    "name": RecordFilter(job_name="train7"),
    "id": RecordFilter(job_id="17"),
    "task of an array": RecordFilter(job_id="900_17"),
    "time": RecordFilter(since_s=NOW_S + 19_000.0),
}
WIDE = {
    "all": RecordFilter(),
    "pattern": RecordFilter(job_name="t*7"),
    "end": RecordFilter(how=JobEnd.OOM),
    "account": RecordFilter(account="a3"),
    "user": RecordFilter(user_name="u7", account="a7", job_name="t*7", how=JobEnd.COMPLETED, until_s=NOW_S + 19_000.0),
    "id": RecordFilter(job_id="900_17"),
}
MAX_QUERY_S = 0.2
"""Of processor time, with ``RECORDS``."""
RECORDS = 20_000


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('plans') / 'tidegauge.db'}")
    yield store
    store.close()


def plan(store: Store, ask: Callable[[Store], object]) -> list[str]:
    """What SQLite does for it, step by step."""
    asked: list[tuple[str, object]] = []

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        asked.append((statement, parameters))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        ask(store)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    with store.database.reading() as connection:
        return [
            str(row[3])
            for statement, parameters in asked
            if statement.lstrip().upper().startswith("SELECT")
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)  # type: ignore[arg-type]  # SAFETY: as the driver got them
        ]


@pytest.mark.parametrize("name", ASKED_OFTEN)
def test_store_plans_of_frequent_queries_scan_no_whole_table(store: Store, name: str) -> None:
    steps = plan(store, ASKED_OFTEN[name])
    assert any("SEARCH" in step for step in steps)
    tables = tuple(f"SCAN {table}" for table in metadata.tables)
    assert [step for step in steps if step.startswith(tables)] == []


@pytest.mark.parametrize("name", NARROW)
def test_records_of_a_user_a_name_an_id_and_a_time_are_found_by_an_index(store: Store, name: str) -> None:
    for ask in (lambda one: one.jobs.ended(NARROW[name], limit=9), lambda one: one.jobs.count_ended(NARROW[name])):
        steps = plan(store, ask)
        assert any("SEARCH job_records" in step for step in steps), steps
        assert not any(step.startswith("SCAN") for step in steps), steps


@pytest.mark.parametrize("sought", [RecordSought(job_id="17"), RecordSought(job_name="train7", user_name="u7")])
def test_attempts_of_a_job_are_found_by_an_index(store: Store, sought: RecordSought) -> None:
    steps = plan(store, lambda one: one.jobs.starts(sought, limit=9))
    assert any("SEARCH job_records" in step or "MULTI-INDEX OR" in step for step in steps), steps
    assert not any(step.startswith("SCAN") for step in steps), steps


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Every user has a job name and an account, and every tenth job has the name of all others."""
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('full') / 'tidegauge.db'}")
    store.jobs.save([job_record()])
    copied = {
        "job_id": "n", "uid": "n % 20", "started_s": "started_s - n", "user_name": "'u' || (n % 20)",
        "ended_s": "ended_s + n", "job_name": "iif(n % 10, 'train' || (n % 20), 'train')",
        "account": "'a' || (n % 20)", "how": "iif(n % 8, 'completed', 'oom')", "array_name": "'900_' || n",
    }  # fmt: skip
    columns = [column.name for column in metadata.tables["job_records"].c]
    with store.database.writing() as connection:
        numbers = f"WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < {RECORDS - 1})"
        chosen = ", ".join(copied.get(column, column) for column in columns)
        connection.exec_driver_sql(
            f"INSERT INTO job_records ({', '.join(columns)}) {numbers} SELECT {chosen} FROM job_records, numbers"
        )
        connection.exec_driver_sql("DELETE FROM job_records WHERE job_id = '4711' AND uid = 1001")
    yield store
    store.close()


@pytest.mark.parametrize("name", WIDE)
def test_of_20000_records_each_page_is_found_in_a_fifth_of_a_second(full: Store, name: str) -> None:
    began_s = time.process_time()
    found, count = full.jobs.ended(WIDE[name], limit=200), full.jobs.count_ended(WIDE[name])
    took_s = time.process_time() - began_s
    assert found
    assert len(found) == min(count, 200)
    assert took_s < MAX_QUERY_S


def test_of_20000_records_the_last_one_of_a_frequent_name_is_found_in_a_fifth_of_a_second(full: Store) -> None:
    began_s = time.process_time()
    found = full.jobs.starts(RecordSought(job_name="train"), limit=1)
    took_s = time.process_time() - began_s
    assert len(found) == 1
    assert took_s < MAX_QUERY_S


def test_decisions_without_an_outcome_are_found_by_their_status(store: Store) -> None:
    found = [step for step in plan(store, ASKED_OFTEN["unfinished"]) if "decisions" in step]
    assert found == ["SEARCH decisions USING INDEX decisions_by_status (status=?)"]
