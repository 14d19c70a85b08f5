"""`open_store`: one database with incidents, audit, evidence and grades, ready for use."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import delete, exists, func, select

from tidegauge.cluster.store.audit import SqlAudit
from tidegauge.cluster.store.database import Database
from tidegauge.cluster.store.evidence import EvidenceStore, delete_old
from tidegauge.cluster.store.grades import GradeStore
from tidegauge.cluster.store.incidents import IncidentStore
from tidegauge.cluster.store.schema import upgrade
from tidegauge.cluster.store.tables import decisions, grades, incident_changes, incidents
from tidegauge.core.incidents.actions import DecisionStatus


@dataclass(frozen=True)
class Store:
    """Thread-safe. Every method raises ``StoreError``, and works again when the trouble is over."""

    incidents: IncidentStore
    audit: SqlAudit
    evidence: EvidenceStore
    grades: GradeStore
    database: Database

    def newest_s(self) -> float | None:
        """The latest time that was written down: the policy clock must not begin before it."""
        columns = (
            incident_changes.c.at_s, decisions.c.decided_s, decisions.c.started_s, decisions.c.finished_s, grades.c.at_s
        )  # fmt: skip
        with self.database.reading() as connection:
            times = [connection.scalar(select(func.max(column))) for column in columns]
        return max((time_s for time_s in times if time_s is not None), default=None)

    def prune(self, *, before_s: float) -> int:
        """Delete what was over before ``before_s``: incidents that were closed with their history, decisions and
        answers, and evidence.

        Open incidents, and such with a decision that is not finished, stay. Returns how many incidents were deleted;
        totals and numbers go on as if they were there.
        """
        unfinished = exists().where(
            decisions.c.incident_number == incidents.c.number, decisions.c.status != DecisionStatus.FINISHED.value
        )
        old = select(incidents.c.number).where(incidents.c.closed_s < before_s, ~unfinished)
        with self.database.writing() as connection:
            numbers = list(connection.scalars(old))
            for number in numbers:
                connection.execute(delete(decisions).where(decisions.c.incident_number == number))
                connection.execute(delete(incidents).where(incidents.c.number == number))
            connection.execute(
                delete(decisions).where(
                    decisions.c.decided_s < before_s,
                    decisions.c.status == DecisionStatus.FINISHED.value,
                    decisions.c.incident_number.not_in(select(incidents.c.number)),
                )
            )
            delete_old(connection, before_s=before_s)
        return len(numbers)

    def close(self) -> None:
        """Let go of the database's connections."""
        self.database.close()


def open_store(url: str) -> Store:
    """Open the database, made or brought up to date if need be. Raises ``StoreError``."""
    database = Database(url)
    try:
        upgrade(database)
    except BaseException:
        database.close()
        raise
    return Store(IncidentStore(database), SqlAudit(database), EvidenceStore(database), GradeStore(database), database)
