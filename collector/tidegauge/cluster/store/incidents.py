"""Incidents as they are now, and their history."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, select, union_all, update

from tidegauge.cluster.store import counts
from tidegauge.cluster.store.database import LARGE_ROWS_AT_ONCE, ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.memory import memory_in, put_rows, write_memory
from tidegauge.cluster.store.tables import (
    acts,
    decisions,
    incident_changes,
    incident_memory,
    incidents,
    is_of,
    namespace_of,
)
from tidegauge.cluster.store.values import INCIDENT, column_name
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import MAX_FINDINGS, ChangeKind, Incident, IncidentCause, IncidentChange
from tidegauge.core.incidents.acts import ActKind, ActOutcome
from tidegauge.core.incidents.loop_figures import OpenIncident
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.verdicts import Severity
from tidegauge.http.access import Owned


class IncidentStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def save(self, changes: Sequence[IncidentChange]) -> None:
        """Write all changes or, with an error, none. A change that was saved before has no effect.

        An incident is kept whole; each line of its history has the figures of ``MAX_FINDINGS`` ranks, as whole ones of
        an incident that swings for days on hundreds of ranks would be gigabytes.
        """
        if not changes:
            return
        with self._database.writing() as connection:
            for change in changes:
                _save(connection, change)

    def open_incidents(self) -> Sequence[Incident]:
        """Open incidents in their latest state, by number."""
        return self.incidents(open_only=True, since_s=None, limit=None)[::-1]

    def next_number(self) -> int:
        """One more than the highest number ever given, pruned incidents included."""
        with self._database.reading() as connection:
            return counts.read(connection, counts.LAST_NUMBER).get(("", ""), 0) + 1

    def incidents(
        self,
        *,
        open_only: bool = False,
        since_s: float | None = None,
        limit: int | None = 1000,
        user_name: Owned | None = None,
    ) -> Sequence[Incident]:
        return list(self.each(open_only=open_only, since_s=since_s, limit=limit, user_name=user_name))

    def each(
        self, *, open_only: bool, since_s: float | None, limit: int | None, user_name: Owned | None = None
    ) -> Iterator[Incident]:
        """Newest first, one at a time: only their texts are held. ``since_s``: only those that are open, or were closed
        at or after it. ``user_name``: only jobs of this owner."""
        query = select(incidents.c.number, incidents.c.value).order_by(incidents.c.number.desc()).limit(limit)
        if open_only:
            query = query.where(incidents.c.closed_s.is_(None))
        if since_s is not None:
            query = query.where(incidents.c.closed_s.is_(None) | (incidents.c.closed_s >= since_s))
        if user_name is not None:
            query = query.where(is_of(incidents, user_name))
        return map(read_incident, self._rows(query))

    def incident(self, number: int) -> Incident | None:
        """The incident; ``None``: it does not exist, or was pruned."""
        rows = self._rows(select(incidents.c.number, incidents.c.value).where(incidents.c.number == number))
        return read_incident(rows[0]) if rows else None

    def save_memory(self, curves: Mapping[int, Sequence[RankMemory]]) -> None:
        """Write how the memory of the ranks of these incidents went, in place of what there was. The numbers are of
        incidents that are saved; others are passed over."""
        with self._database.writing() as connection:
            asked = select(incidents.c.number).where(incidents.c.number.in_(list(curves)))
            rows = [
                {"number": number, "value": write_memory(JobMemory(curves=tuple(curves[number])))}
                for number in connection.scalars(asked).all()
            ]
            put_rows(connection, incident_memory, rows)

    def memory(self, number: int) -> Sequence[RankMemory]:
        """What ``save_memory`` wrote for this incident."""
        with self._database.reading() as connection:
            value = connection.scalar(select(incident_memory.c.value).where(incident_memory.c.number == number))
        found = memory_in(value, f"incident {number}")
        return () if found is None else found.curves

    def lines(
        self, number: int, *, most: int | None = None, most_figures: int | None = None
    ) -> Iterator[IncidentChange]:
        """The history of one incident, oldest first, one at a time. ``most``: only the newest of the lines with more
        than new figures; ``most_figures``: only the newest of the others."""
        seq, is_figures = incident_changes.c.seq, incident_changes.c.kind == ChangeKind.UPDATED.value
        of_incident = select(seq).where(incident_changes.c.number == number).order_by(seq.desc())
        parts = (
            of_incident.where(~is_figures).limit(most).subquery(),
            of_incident.where(is_figures).limit(most_figures).subquery(),
        )
        chosen = union_all(*(select(part.c.seq) for part in parts))
        query = select(incident_changes).where(seq.in_(chosen)).order_by(seq)
        with self._database.reading() as connection:
            for row in connection.execute(query.execution_options(yield_per=LARGE_ROWS_AT_ONCE)):
                yield _change(row)

    def count_left_out(self, number: int, *, most: int, most_figures: int) -> int:
        """The number of lines that ``lines`` leaves out."""
        kind = incident_changes.c.kind
        query = select(kind, func.count().label("lines")).where(incident_changes.c.number == number).group_by(kind)
        count: dict[str, int] = {row.kind: row.lines for row in self._rows(query)}
        figures = count.pop(ChangeKind.UPDATED.value, 0)
        return max(sum(count.values()) - most, 0) + max(figures - most_figures, 0)

    def changes(
        self, *, since_s: float, limit: int | None = None, user_name: Owned | None = None,
        most_findings: int | None = None,
    ) -> Sequence[IncidentChange]:  # fmt: skip
        """Changes at or after ``since_s``, oldest first. ``limit``: only the newest; ``user_name``: only jobs of this
        owner; ``most_findings``: ranks in all, shared evenly, at least one per change."""
        query = select(incident_changes).where(incident_changes.c.at_s >= since_s)
        if user_name is not None:
            theirs = select(incidents.c.number).where(is_of(incidents, user_name))
            query = query.where(incident_changes.c.number.in_(theirs))
        newest = query.order_by(incident_changes.c.seq.desc()).limit(limit)
        with self._database.reading() as connection:
            each = MAX_FINDINGS
            if most_findings is not None:
                told = connection.execute(select(func.count()).select_from(newest.subquery())).scalar_one()
                each = max(most_findings // max(told, 1), 1)
            rows = connection.execute(newest.execution_options(yield_per=ROWS_AT_ONCE))
            return [_change(row, min(each, MAX_FINDINGS)) for row in rows][::-1]

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Incident]:
        """Incidents of all groups of ranks of this attempt of a job, newest first."""
        of_job = {"job_id": column_name(job.job_id), "attempt": job.attempt, "uid": job.uid}
        query = select(incidents.c.number, incidents.c.value).filter_by(**of_job)
        return [read_incident(row) for row in self._rows(query.order_by(incidents.c.number.desc()).limit(limit))]

    def namespaces(self) -> frozenset[str]:
        """Namespaces of Kubernetes that any job with an incident was in."""
        rows = self._rows(select(namespace_of(incidents)).distinct())
        return frozenset(row[0].removesuffix("/") for row in rows) - {""}

    def has_owner(self, job: JobKey, user_name: Owned) -> bool:
        """Whether this attempt of a job has an incident, and all that it has are of ``user_name``."""
        of_job = {"job_id": column_name(job.job_id), "attempt": job.attempt, "uid": job.uid}
        query = select(is_of(incidents, user_name)).filter_by(**of_job).distinct()
        return [bool(row[0]) for row in self._rows(query)] == [True]

    def marks(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Mapping[int, str]:
        """A mark by number for each incident that is open, or was closed at or after ``since_s``: open ones first, so
        that they are within ``limit``, then newest first. The mark changes with every change of the incident, of its
        decisions or of people's acts, so that a follower reads only changed incidents again. ``user_name``: only jobs
        of this owner."""
        one, of = incidents.c, decisions.c
        told = select(func.max(incident_changes.c.seq)).where(incident_changes.c.number == one.number).scalar_subquery()
        ended = acts.c.outcome != ActOutcome.BEGUN.value
        acted = [
            select(figure).where(acts.c.number == one.number, ended).scalar_subquery()
            for figure in (func.count(acts.c.seq), func.max(acts.c.seq))
        ]
        twin = incidents.alias()
        exempted = (
            select(func.max(acts.c.seq))
            .join(twin, twin.c.number == acts.c.number)
            .where(*(twin.c[name] == one[name] for name in ("job_id", "attempt", "uid")))
            .where(acts.c.kind == ActKind.EXEMPT.value, ended)
            .scalar_subquery()
        )
        words = (one.updated_s, one.state, told, func.count(of.seq), func.sum(of.starts), func.max(of.decided_s),
                 func.count(of.finished_s), func.max(of.finished_s), *acted, exempted)  # fmt: skip
        # Not "or": a database would read through the incidents of all months, every two seconds.
        wanted = union_all(
            select(one.number).where(one.closed_s.is_(None)), select(one.number).where(one.closed_s >= since_s)
        )
        query = (
            select(one.number, *words)
            .join(decisions, of.incident_number == one.number, isouter=True)
            .where(one.number.in_(wanted))
            .group_by(one.number)
            .order_by(one.closed_s.is_not(None), one.number.desc())
            .limit(limit)
        )
        if user_name is not None:
            query = query.where(is_of(incidents, user_name))
        return {row[0]: " ".join(map(str, row[1:])) for row in self._rows(query)}

    def open_figures(self, jobs: Collection[JobKey]) -> Sequence[tuple[JobKey | None, OpenIncident]]:
        """Open incidents, each with the one of ``jobs`` that it is about, if any. Reads no findings: a scrape cannot
        wait for those of thousands of ranks."""
        one = incidents.c
        of_job = (one.job_id, one.attempt, one.uid, one.rank_group)
        columns = (*of_job, one.number, one.cause, one.severity, one.opened_s)
        wanted = {(column_name(job.job_id), job.attempt, job.uid, column_name(job.group)): job for job in jobs}
        rows = self._rows(select(*columns).where(one.closed_s.is_(None)).order_by(one.number))
        return [
            (
                wanted.get((row.job_id, row.attempt, row.uid, row.rank_group)),
                OpenIncident(row.number, IncidentCause(row.cause), Severity(row.severity), row.opened_s),
            )
            for row in rows
        ]

    def totals(self) -> Mapping[IncidentCause, int]:
        """The number of incidents ever opened, for every cause."""
        with self._database.reading() as connection:
            counted = counts.read(connection, counts.INCIDENTS)
        return {cause: counted.get((cause.value, ""), 0) for cause in IncidentCause}

    def _rows(self, query: Select[Any]) -> Sequence[Row[Any]]:
        with self._database.reading() as connection:
            return connection.execute(query).all()


def _save(connection: Connection, change: IncidentChange) -> None:
    incident, line = change.incident, INCIDENT.write(change.incident.shortened(MAX_FINDINGS))
    at = {"number": incident.number, "kind": change.kind.value, "at_s": change.at_unix_s, "value": line}
    if connection.execute(select(incident_changes.c.seq).filter_by(**at)).first() is not None:
        return
    row = _row(incident)
    if connection.execute(update(incidents).filter_by(number=incident.number).values(row)).rowcount == 0:
        connection.execute(incidents.insert().values(row))
        counts.raise_to(connection, counts.LAST_NUMBER, incident.number)
        counts.add_one(connection, counts.INCIDENTS, incident.key.cause.value)
    connection.execute(incident_changes.insert().values(at))


def _row(incident: Incident) -> dict[str, Any]:
    key = incident.key
    return {
        "number": incident.number,
        "job_id": column_name(key.job.job_id),
        "attempt": key.job.attempt,
        "uid": key.job.uid,
        "rank_group": column_name(key.job.group),
        "cause": key.cause.value,
        "state": incident.state.value,
        "severity": incident.severity.value,
        "user_name": column_name(incident.user_name),
        "opened_s": incident.opened_unix_s,
        "updated_s": incident.updated_unix_s,
        "closed_s": incident.closed_unix_s,
        "value": INCIDENT.write(incident),
    }


def _change(row: Row[Any], most_findings: int = MAX_FINDINGS) -> IncidentChange:
    """Shortened here too: older versions wrote whole incidents."""
    return IncidentChange(ChangeKind(row.kind), row.at_s, read_incident(row).shortened(most_findings))


def read_incident(row: Row[Any]) -> Incident:
    """The incident in a row of ``incidents`` or ``incident_changes``. Raises ``StoreError``."""
    try:
        return INCIDENT.read(row.value)
    except ValueError as error:
        raise StoreError(f"incident {row.number} in the database cannot be read: {error}") from error
