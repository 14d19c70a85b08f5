"""How SQLite answers what is asked every second or on every scrape: by an index, never through the history."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, event

from sample_views import NOW_S
from scheduler_values import JOB
from tidegauge.cluster.store import Store, open_store
from tidegauge.cluster.store.tables import metadata

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
    "answers": lambda store: store.grades.answers(1),
    "open_among": lambda store: store.evidence.open_among([JOB]),
}


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


def test_decisions_without_an_outcome_are_found_by_their_status(store: Store) -> None:
    found = [step for step in plan(store, ASKED_OFTEN["unfinished"]) if "decisions" in step]
    assert found == ["SEARCH decisions USING INDEX decisions_by_status (status=?)"]
