"""Counters, changed in the transaction that makes the counted rows, so that crashes and pruning keep them right."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, Table, select
from sqlalchemy.dialects import postgresql, sqlite

from tidegauge.cluster.store.tables import counters

INCIDENTS = "incidents"
"""Ever opened, by cause."""
ACTIONS = "actions"
"""By action and how it ended."""
LAST_NUMBER = "last_number"
"""The highest number that an incident was given."""


def insert_into(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    return postgresql.insert(table) if connection.dialect.name == "postgresql" else sqlite.insert(table)


def add_one(connection: Connection, subject: str, name: str, outcome: str = "") -> None:
    insert = insert_into(connection, counters).values(subject=subject, name=name, outcome=outcome, value=1)
    keys = [counters.c.subject, counters.c.name, counters.c.outcome]
    connection.execute(insert.on_conflict_do_update(index_elements=keys, set_={"value": counters.c.value + 1}))


def raise_to(connection: Connection, subject: str, value: int) -> None:
    """Set the counter to ``value``, unless it is higher."""
    insert = insert_into(connection, counters).values(subject=subject, name="", outcome="", value=value)
    keys = [counters.c.subject, counters.c.name, counters.c.outcome]
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=keys, set_={"value": insert.excluded.value}, where=counters.c.value < insert.excluded.value
        )
    )


def read(connection: Connection, subject: str) -> Mapping[tuple[str, str], int]:
    """Counters by name and outcome."""
    rows = connection.execute(select(counters).where(counters.c.subject == subject))
    return {(row.name, row.outcome): row.value for row in rows}
