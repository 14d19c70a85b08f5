"""Opens one database with incidents, audit, evidence, grades, jobs and profiles, and brings its tables up to date."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, Row, Select, delete, exists, func, select, text

from tidegauge.cluster.store.acts import ActStore
from tidegauge.cluster.store.audit import SqlAudit
from tidegauge.cluster.store.database import LARGE_ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.evidence import EvidenceStore, delete_old
from tidegauge.cluster.store.grades import GradeStore
from tidegauge.cluster.store.incidents import IncidentStore, read_incident
from tidegauge.cluster.store.job_records import ROOM, JobRecordStore, RecordRoom
from tidegauge.cluster.store.persons import PersonStore
from tidegauge.cluster.store.profiles import ProfileStore
from tidegauge.cluster.store.tables import acts, decisions, grades, incident_changes, incidents
from tidegauge.cluster.store.usage import UsageStore
from tidegauge.core.incidents.actions import DecisionStatus
from tidegauge.core.incidents.wording import other_number

VERSION_TABLE = "tidegauge_schema"
_UPGRADE_LOCK = 0x7469646567
"""Any number that other programs are unlikely to lock ("tideg")."""


@dataclass(frozen=True)
class Store:
    """All tables. Thread-safe; every method raises ``StoreError``, and works again after the trouble is over."""

    incidents: IncidentStore
    audit: SqlAudit
    evidence: EvidenceStore
    grades: GradeStore
    acts: ActStore
    jobs: JobRecordStore
    profiles: ProfileStore
    usage: UsageStore
    database: Database

    @property
    def persons(self) -> PersonStore:
        """What the tables hold of one person."""
        return PersonStore(self.database)

    def newest_s(self) -> float | None:
        """The latest time in the database: the policy clock must not begin before it."""
        columns = (
            incident_changes.c.at_s, decisions.c.decided_s, decisions.c.started_s, decisions.c.finished_s,
            grades.c.at_s, acts.c.at_s,
        )  # fmt: skip
        with self.database.reading() as connection:
            times = [connection.scalar(select(func.max(column))) for column in columns]
        return max((time_s for time_s in times if time_s is not None), default=None)

    def prune(self, *, before_s: float) -> int:
        """Delete what ended before ``before_s``: closed incidents with their history, decisions, grades and acts,
        and evidence. Records of jobs have a time of their own (``JobRecordStore.prune``), which profiles share.

        Incidents that are open, or have an unfinished decision, stay, and so does the other half of a story that stays
        (growth, and the error that it ended in): each one's page links to the other. Returns the number of deleted
        incidents; totals and numbers continue as if these were there.
        """
        unfinished = exists().where(
            decisions.c.incident_number == incidents.c.number, decisions.c.status != DecisionStatus.FINISHED.value
        )
        old: Select[Any] = select(incidents.c.number, incidents.c.value).where(
            incidents.c.closed_s < before_s, ~unfinished
        )
        with self.database.writing() as connection:
            rows = connection.execute(old.execution_options(yield_per=LARGE_ROWS_AT_ONCE))
            other_halves = {row.number: _other_half(row) for row in rows}
            numbers = [
                number
                for number, other in other_halves.items()
                if other in other_halves or not _is_there(connection, other)
            ]
            for number in numbers:
                connection.execute(delete(decisions).where(decisions.c.incident_number == number))
                connection.execute(delete(acts).where(acts.c.number == number))
                connection.execute(delete(incidents).where(incidents.c.number == number))
            connection.execute(
                delete(decisions).where(
                    decisions.c.decided_s < before_s,
                    decisions.c.status == DecisionStatus.FINISHED.value,
                    decisions.c.incident_number.not_in(select(incidents.c.number)),
                )
            )
            connection.execute(
                delete(acts).where(acts.c.at_s < before_s, acts.c.number.not_in(select(incidents.c.number)))
            )
            delete_old(connection, before_s=before_s)
        return len(numbers)

    def close(self) -> None:
        self.database.close()


def _other_half(row: Row[Any]) -> int | None:
    try:
        return other_number(read_incident(row))
    except StoreError:  # a row that nobody can read is deleted all the same
        return None


def _is_there(connection: Connection, number: int | None) -> bool:
    return connection.scalar(select(incidents.c.number).where(incidents.c.number == number)) is not None


def open_store(url: str, *, jobs: RecordRoom = ROOM) -> Store:
    """Open the database, created or upgraded if need be. Raises ``StoreError``."""
    database = Database(url)
    try:
        _upgrade(database)
    except BaseException:
        database.close()
        raise
    return Store(
        IncidentStore(database), SqlAudit(database), EvidenceStore(database), GradeStore(database),
        ActStore(database), JobRecordStore(database, jobs), ProfileStore(database), UsageStore(database), database,
    )  # fmt: skip


def _upgrade(database: Database) -> None:
    """Apply all missing versions of the tables in one transaction. Raises ``StoreError``, also for a newer database."""
    config = _config()
    with database.reading() as connection:
        if not _is_behind(connection, config, database):
            return
    with database.writing() as connection:
        if database.dialect == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _UPGRADE_LOCK})
        if _is_behind(connection, config, database):  # by now another process may have done it
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "tidegauge.cluster.store:migrations")
    return config


def _is_behind(connection: Connection, config: Config, database: Database) -> bool:
    scripts = ScriptDirectory.from_config(config)
    newest = scripts.get_current_head()
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    if found == newest:
        return False
    if found is None:
        return True
    try:
        scripts.get_revision(found)
    except CommandError as error:
        raise StoreError(
            f"the database {database.name} was written by a newer version of Tidegauge (schema {found}, this "
            f"version supports up to {newest}). Use that newer version, or another database_url"
        ) from error
    return True
