"""The audit: every decision, written down before it is carried out, with its outcome."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, Select, func, or_, select, update

from tidegauge.cluster.store import counts
from tidegauge.cluster.store.database import ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.tables import decisions, incidents, is_of
from tidegauge.cluster.store.values import DECISION, column_name, column_text
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import BREAKERS, Decision, DecisionRecord, DecisionStatus, Disposition, Outcome
from tidegauge.http.access import Owned

_UNFINISHED = [status.value for status in DecisionStatus if status is not DecisionStatus.FINISHED]


class SqlAudit:
    """Implements the hooks' ``ports.Audit``. Thread-safe; every method raises ``StoreError``, an ``AuditError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def write_ahead(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        """All or none; returns those that were not there yet."""
        if not decisions:
            return ()
        with self._database.writing() as connection:
            return [decision for decision in decisions if _insert(connection, decision)]

    def begin(self, decision_id: str, *, at_s: float) -> None:
        """Mark a decision as started once more. A finished one stays finished."""
        changes = {"status": DecisionStatus.STARTED.value, "started_s": at_s, "starts": decisions.c.starts + 1}
        with self._database.writing() as connection:
            self._change(connection, decision_id, changes)

    def finish(self, decision_id: str, outcome: Outcome, detail: str, *, at_s: float) -> None:
        """Write the outcome of a decision. The first outcome stays."""
        changes = {
            "status": DecisionStatus.FINISHED.value,
            "outcome": outcome.value,
            "detail": column_text(detail),
            "finished_s": at_s,
        }
        with self._database.writing() as connection:
            action = self._change(connection, decision_id, changes)
            if action is not None:
                counts.add_one(connection, counts.ACTIONS, action, outcome.value)

    def unfinished(self) -> Sequence[DecisionRecord]:
        """Decisions to carry out without an outcome, oldest first."""
        # Not "!= finished": no index finds that, and this is asked every second beside the decisions of months.
        return self._records(select(decisions).where(decisions.c.status.in_(_UNFINISHED)))

    def each(
        self, *, since_s: float, limit: int | None = None, user_name: Owned | None = None
    ) -> Iterator[DecisionRecord]:  # fmt: skip
        """Decisions made at or after ``since_s``, oldest first, one at a time, as months of them have 4 KB each.
        ``limit``: only the newest; ``user_name``: only about jobs of this owner."""
        query = _since(select(decisions), since_s, user_name)
        if limit is not None:
            newest_first = query.order_by(decisions.c.decided_s.desc(), decisions.c.seq.desc()).limit(limit)
            with self._database.reading() as connection:
                rows = connection.execute(newest_first).all()
            yield from map(_record, reversed(rows))
            return
        oldest_first = query.order_by(decisions.c.decided_s, decisions.c.seq)
        with self._database.reading() as connection:
            for row in connection.execute(oldest_first.execution_options(yield_per=ROWS_AT_ONCE)):
                yield _record(row)

    def memory(self, *, since_s: float) -> Iterator[DecisionRecord]:
        """Decisions made at or after ``since_s``, about open incidents, unfinished, or withheld by a circuit breaker;
        in any order, one at a time."""
        one = decisions.c
        of_open = select(incidents.c.number).where(incidents.c.closed_s.is_(None))
        # The ids alone are looked through, which an index has: each decision takes kilobytes.
        known = select(one.decision_id).where(
            or_(*(one.decision_id.contains(f":withheld:{brake}:", autoescape=True) for brake in BREAKERS)),
            ~one.decision_id.contains(":would:withheld:"),
        )
        query = select(decisions).where(
            or_(
                one.decided_s >= since_s,
                one.incident_number.in_(of_open),
                one.status.in_(_UNFINISHED),
                one.decision_id.in_(known),
            )
        )
        with self._database.reading() as connection:
            for row in connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE)):
                yield _record(row)

    def count(self, *, since_s: float, user_name: Owned | None = None) -> int:
        """The number of decisions that ``each`` gives without a limit."""
        with self._database.reading() as connection:
            return connection.scalar(_since(select(func.count()).select_from(decisions), since_s, user_name)) or 0

    def records_of(self, incident_number: int) -> Sequence[DecisionRecord]:
        """The decisions about one incident, oldest first."""
        return self._records(select(decisions).where(decisions.c.incident_number == incident_number))

    def action_totals(self) -> Mapping[tuple[str, str], int]:
        """Number of finished decisions, pruned ones included, by action and outcome (or ``would``, ``withheld``)."""
        with self._database.reading() as connection:
            return counts.read(connection, counts.ACTIONS)

    def last_finished(self, jobs: Collection[JobKey], *, since_s: float) -> Mapping[tuple[JobKey, str, str], float]:
        """The time of the latest finished decision on each of ``jobs``, by action and outcome; of decisions to carry
        out that were made at or after ``since_s``."""
        one = incidents.c
        columns = (one.job_id, one.attempt, one.uid, one.rank_group, decisions.c.action, decisions.c.outcome)
        query = (
            select(*columns, func.max(decisions.c.finished_s))
            .join(incidents, incidents.c.number == decisions.c.incident_number)
            .where(decisions.c.decided_s >= since_s, decisions.c.outcome.is_not(None))
            .group_by(*columns)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        wanted = {(column_name(job.job_id), job.attempt, job.uid, column_name(job.group)): job for job in jobs}
        return {
            (job, action, outcome): finished_s
            for *of_job, action, outcome, finished_s in rows
            if (job := wanted.get(tuple(of_job))) is not None
        }

    def _change(self, connection: Connection, decision_id: str, changes: Mapping[str, Any]) -> str | None:
        """The action of the changed decision; ``None`` if it was finished already."""
        known = decisions.c.decision_id == column_name(decision_id)
        action = connection.scalar(select(decisions.c.action).where(known))
        if action is None:
            raise StoreError(f"decision {decision_id} is not in the database {self._database.name}")
        unfinished = known & (decisions.c.status != DecisionStatus.FINISHED.value)
        changed = connection.execute(update(decisions).where(unfinished).values(**changes)).rowcount
        return str(action) if changed else None

    def _records(self, query: Select[Any]) -> Sequence[DecisionRecord]:
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(decisions.c.decided_s, decisions.c.seq)).all()
        return [_record(row) for row in rows]


def _since(query: Select[Any], since_s: float, user_name: Owned | None) -> Select[Any]:
    query = query.where(decisions.c.decided_s >= since_s)
    if user_name is None:
        return query
    # One whose incident is not there any more is nobody's.
    theirs = select(incidents.c.number).where(is_of(incidents, user_name))
    return query.where(decisions.c.incident_number.in_(theirs))


def _insert(connection: Connection, decision: Decision) -> bool:
    is_to_do = decision.disposition is Disposition.DO
    status = DecisionStatus.DECIDED if is_to_do else DecisionStatus.FINISHED
    insert = counts.insert_into(connection, decisions).values(
        decision_id=column_name(decision.decision_id),
        incident_number=decision.incident.number,
        action=decision.action.value,
        disposition=decision.disposition.value,
        status=status.value,
        decided_s=decision.decided_s,
        starts=0,
        value=DECISION.write(decision),
    )
    insert = insert.on_conflict_do_nothing(index_elements=[decisions.c.decision_id])
    # SQLAlchemy does not keep the count of an INSERT unless it is asked to.
    is_new = connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount == 1
    if is_new and not is_to_do:
        counts.add_one(connection, counts.ACTIONS, decision.action.value, decision.disposition.value)
    return is_new


def _record(row: Row[Any]) -> DecisionRecord:
    try:
        return DecisionRecord(
            decision=DECISION.read(row.value),
            status=DecisionStatus(row.status),
            outcome=None if row.outcome is None else Outcome(row.outcome),
            detail=row.detail,
            started_s=row.started_s,
            finished_s=row.finished_s,
            starts=row.starts,
        )
    except ValueError as error:
        raise StoreError(f"decision {row.decision_id} in the database cannot be read: {error}") from error
