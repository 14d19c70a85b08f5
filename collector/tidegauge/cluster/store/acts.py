"""Acts of people on incidents: the record of who asked for what, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, func, or_, select, update

from tidegauge.cluster.store.database import Database, StoreError
from tidegauge.cluster.store.incidents import read_incident
from tidegauge.cluster.store.room import delete_beyond
from tidegauge.cluster.store.tables import acts, incidents, is_of
from tidegauge.cluster.store.values import column_name, column_text
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.acts import ActKind, ActOutcome, ActWay, PersonAct
from tidegauge.http.access import Owned

MAX_ACTS = 50
"""Of one person on one incident, the latest: they are its record, and nobody is to fill the disk with them. Those
that are in force stay beside them: else a person's many acts would end an exemption, or bring back one that was
ended."""
MAX_REFUSED = 200
"""Refused ones of one person, whatever numbers they named."""
_LATEST_COUNTS: Final = ((ActKind.ACKNOWLEDGE.value, ActKind.UNACKNOWLEDGE.value), (ActKind.EXEMPT.value,))
"""Kinds of which the latest act on an incident counts."""


class ActStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, request_id: str) -> PersonAct | None:
        """The act of this request, if it is written down."""
        with self._database.reading() as connection:
            row = connection.execute(_by_request(request_id)).first()
        return None if row is None else _act(row)

    def begin(self, act: PersonAct) -> PersonAct | None:
        """Write an act down before it is done. Returns the one that has this ``request_id`` already, and then writes
        nothing: it is the same request once more."""
        with self._database.writing() as connection:
            row = connection.execute(_by_request(act.request_id)).first()
            if row is not None:
                return _act(row)
            connection.execute(acts.insert().values(_row(act)))
            theirs = _of_person(act)
            in_force = _in_force(connection, act.number)
            delete_beyond(connection, acts, MAX_ACTS, acts.c.number == act.number, theirs, spare=in_force)
            if act.outcome is ActOutcome.REFUSED:
                delete_beyond(connection, acts, MAX_REFUSED, acts.c.outcome == ActOutcome.REFUSED.value, theirs)
        return None

    def finish(self, request_id: str, outcome: ActOutcome, detail: str | None) -> PersonAct:
        """Write down what became of an act."""
        changes = {"outcome": outcome.value, "detail": None if detail is None else column_text(detail)}
        with self._database.writing() as connection:
            connection.execute(update(acts).where(acts.c.request_id == column_name(request_id)).values(changes))
            row = connection.execute(_by_request(request_id)).first()
        if row is None:
            raise StoreError(f"the act {request_id} is not in the database")
        return _act(row)

    def of_incident(self, number: int) -> Sequence[PersonAct]:
        """Oldest first. An exemption is of an attempt of a job: those by way of its other incidents are among them."""
        this, other = incidents.alias(), incidents.alias()
        same = [this.c[name] == other.c[name] for name in ("job_id", "attempt", "uid")]
        twins = select(other.c.number).join(this, and_(*same)).where(this.c.number == number)
        exempting = [acts.c.kind == ActKind.EXEMPT.value, acts.c.outcome == ActOutcome.DONE.value]
        query = select(acts).where(or_(acts.c.number == number, and_(acts.c.number.in_(twins), *exempting)))
        with self._database.reading() as connection:
            return _all(connection, query.order_by(acts.c.seq))

    def latest(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[PersonAct]:
        """The newest ``limit`` at or after ``since_s``, oldest first. ``user_name``: only on jobs of this owner."""
        query = select(acts).where(acts.c.at_s >= since_s).order_by(acts.c.seq.desc()).limit(limit)
        if user_name is not None:
            theirs = select(incidents.c.number).where(is_of(incidents, user_name))
            query = query.where(acts.c.number.in_(theirs))
        with self._database.reading() as connection:
            return _all(connection, query)[::-1]

    def exemptions(self, *, now_s: float) -> Mapping[JobKey, PersonAct]:
        """The exemption in force of each attempt of a job (``JobKey.whole``) that has one: the latest counts."""
        key = (incidents.c.job_id, incidents.c.attempt, incidents.c.uid)
        last = (
            select(func.max(acts.c.seq))
            .join(incidents, incidents.c.number == acts.c.number)
            .where(
                acts.c.until_s.is_not(None),
                acts.c.kind == ActKind.EXEMPT.value,
                acts.c.outcome == ActOutcome.DONE.value,
            )
            .group_by(*key)
        )
        some = select(acts.c.seq).where(acts.c.until_s > now_s).limit(1)
        query = select(acts, incidents.c.value).join(incidents, incidents.c.number == acts.c.number)
        query = query.where(acts.c.seq.in_(last), acts.c.until_s > now_s)
        with self._database.reading() as connection:
            if connection.scalar(some) is None:  # as nearly always, once a second
                return {}
            rows = connection.execute(query).all()
            return {read_incident(row).key.job.whole: _act(row) for row in rows}


def _by_request(request_id: str) -> Select[Any]:
    return select(acts).where(acts.c.request_id == column_name(request_id))


def _in_force(connection: Connection, number: int) -> list[int]:
    """``seq`` of the acts that say who looks at an incident, and whether its job is exempt: the latest ones done."""
    done = select(func.max(acts.c.seq)).where(acts.c.number == number, acts.c.outcome == ActOutcome.DONE.value)
    latest = [connection.scalar(done.where(acts.c.kind.in_(kinds))) for kinds in _LATEST_COUNTS]
    return [seq for seq in latest if seq is not None]


def _of_person(act: PersonAct) -> ColumnElement[bool]:
    if act.by is not None:
        return acts.c.by_name == column_name(act.by)
    return acts.c.by_name.is_(None) & (acts.c.sender == column_name(act.sender or ""))


def _row(act: PersonAct) -> dict[str, Any]:
    return {
        "request_id": column_name(act.request_id), "number": act.number, "kind": act.kind.value,
        "by_name": None if act.by is None else column_name(act.by), "as_admin": act.as_admin,
        "at_s": act.at_unix_s, "way": act.way.value,
        "sender": None if act.sender is None else column_name(act.sender), "until_s": act.until_unix_s,
        "outcome": act.outcome.value, "detail": None if act.detail is None else column_text(act.detail),
    }  # fmt: skip


def _all(connection: Connection, query: Select[Any]) -> list[PersonAct]:
    return [_act(row) for row in connection.execute(query).all()]


def _act(row: Row[Any]) -> PersonAct:
    try:
        return PersonAct(
            row.request_id, row.number, ActKind(row.kind), row.by_name, row.as_admin, row.at_s, ActWay(row.way),
            row.sender, row.until_s, ActOutcome(row.outcome), row.detail,
        )  # fmt: skip
    except ValueError as error:
        raise StoreError(f"an act on incident {row.number} in the database cannot be read: {error}") from error
