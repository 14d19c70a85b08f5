"""Grades that people give incidents, a leak or not, and the incidents that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, exists, func, select

from tidegauge.cluster.store.database import ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.incidents import read_incident
from tidegauge.cluster.store.room import delete_beyond
from tidegauge.cluster.store.tables import decisions, grades, incidents, is_of
from tidegauge.cluster.store.values import column_name, column_text
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.actions import ActionKind, Disposition, Outcome
from tidegauge.core.incidents.grades import Grade, GradeAnswer, GradedIncident
from tidegauge.http.access import Owned

MAX_ANSWERS = 20
"""Of one person to one incident, the latest: they are its record, and nobody is to fill the disk with them."""
_GROWTH = [cause.value for cause in IncidentCause if cause.is_growth]


class GradeStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, number: int, answer: GradeAnswer) -> bool:
        """Write down an answer; of one person the latest counts. ``False``: there is no such incident."""
        by_name = column_name(answer.by)
        comment = None if answer.comment is None else column_text(answer.comment)
        kept = answer._replace(by=by_name, comment=comment)
        with self._database.writing() as connection:
            if connection.scalar(select(incidents.c.number).where(incidents.c.number == number)) is None:
                return False
            last = _last_of(connection, number, by_name)
            if last is None or last._replace(at_unix_s=kept.at_unix_s) != kept:
                connection.execute(grades.insert().values(_row(number, kept)))
                delete_beyond(connection, grades, MAX_ANSWERS, *_theirs(number, by_name))
        return True

    def answers(self, number: int) -> Sequence[GradeAnswer]:
        with self._database.reading() as connection:
            return _answers(connection, number)

    def last_of(self, number: int, name: str) -> GradeAnswer | None:
        """The latest answer of one person; ``None``: there is none."""
        with self._database.reading() as connection:
            return _last_of(connection, number, column_name(name))

    def notified(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[GradedIncident]:
        """The newest ``limit`` incidents of growth, newest first, that were opened at or after ``since_s`` and whose
        owner was notified, or would have been in another mode of the policy. ``user_name``: only jobs of this owner."""
        told = _has_decision(decisions.c.outcome == Outcome.DONE.value)
        query = (
            select(incidents.c.number, incidents.c.value, told.label("told"))
            .where(*_are_notified(since_s, user_name))
            .order_by(incidents.c.number.desc())
            .limit(limit)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
            found = [_graded(row) for row in rows]
            return [one._replace(answers=_answers(connection, one.number)) for one in found]

    def count_notified(self, *, since_s: float, user_name: Owned | None = None) -> int:
        """The number of incidents that ``notified`` gives without a limit."""
        query = select(func.count()).select_from(incidents).where(*_are_notified(since_s, user_name))
        with self._database.reading() as connection:
            return connection.scalar(query) or 0


def _are_notified(since_s: float, user_name: Owned | None) -> list[ColumnElement[bool]]:
    was_told = decisions.c.outcome == Outcome.DONE.value
    would_be = decisions.c.disposition == Disposition.WOULD.value
    wanted = [incidents.c.opened_s >= since_s, incidents.c.cause.in_(_GROWTH), _has_decision(was_told | would_be)]
    return wanted if user_name is None else [*wanted, is_of(incidents, user_name)]


def _has_decision(how: ColumnElement[bool]) -> ColumnElement[bool]:
    of_incident = decisions.c.incident_number == incidents.c.number
    return exists().where(of_incident, decisions.c.action == ActionKind.NOTIFY.value, how)


def _last_of(connection: Connection, number: int, by_name: str) -> GradeAnswer | None:
    query = select(grades).where(*_theirs(number, by_name)).order_by(grades.c.seq.desc()).limit(1)
    row = connection.execute(query).first()
    return None if row is None else _answer(row)


def _theirs(number: int, by_name: str) -> tuple[ColumnElement[bool], ...]:
    return grades.c.number == number, grades.c.by_name == by_name


def _answers(connection: Connection, number: int) -> tuple[GradeAnswer, ...]:
    query = select(grades).where(grades.c.number == number).order_by(grades.c.seq)
    return tuple(map(_answer, connection.execute(query)))


def _row(number: int, answer: GradeAnswer) -> dict[str, Any]:
    return {
        "number": number, "by_name": answer.by, "as_admin": answer.as_admin, "at_s": answer.at_unix_s,
        "grade": answer.grade.value, "comment": answer.comment,
    }  # fmt: skip


def _answer(row: Row[Any]) -> GradeAnswer:
    try:
        return GradeAnswer(Grade(row.grade), row.by_name, row.as_admin, row.at_s, row.comment)
    except ValueError as error:
        raise StoreError(f"a grade of incident {row.number} in the database cannot be read: {error}") from error


def _graded(row: Row[Any]) -> GradedIncident:
    incident = read_incident(row)
    severity = incident.worst_severity or incident.severity
    return GradedIncident(
        incident.number, incident.user_name, incident.key.cause, severity, incident.opened_unix_s, bool(row.told)
    )
