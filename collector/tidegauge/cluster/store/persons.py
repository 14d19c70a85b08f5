"""Everything in the database about one person: found, exported, and forgotten."""

from __future__ import annotations

import base64
import binascii
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, Table, delete, select, text, update

from tidegauge.cluster.store import counts
from tidegauge.cluster.store.database import LARGE_ROWS_AT_ONCE, ROWS_AT_ONCE, Database
from tidegauge.cluster.store.tables import (
    acts,
    decisions,
    evidence,
    grades,
    incident_changes,
    incident_memory,
    incidents,
    job_memory,
    job_records,
    metadata,
    profiles,
)
from tidegauge.cluster.store.values import DECISION, INCIDENT, column_name
from tidegauge.core.incidents.actions import DecisionStatus, Outcome
from tidegauge.core.incidents.forgotten import (
    FORGOTTEN_UID,
    REMOVED,
    Alias,
    alias_of,
    decision_without_person,
    incident_without_person,
)
from tidegauge.core.jobs.kubernetes import namespace_of
from tidegauge.core.views import OWNER_SEPARATOR

_KEY = ("job_id", "attempt", "uid")
_ROOT = 0
_MAX_UNPACKED_BYTES = 32 << 20
_OF_JOBS = (job_records, job_memory, evidence, profiles)
"""Tables whose rows go with the job."""
_OF_INCIDENTS = (incidents, incident_changes, incident_memory, decisions)
_BY_PEOPLE = (grades, acts)
"""Tables with the names of people who said or asked for something about an incident."""

Job = tuple[str, int, int]
"""Job id as the database has it, attempt and uid."""


class Person(NamedTuple):
    """What sets the rows of one person apart."""

    name: str
    names: frozenset[str]
    """Values of ``user_name`` that mean this person: alone, or beside others where nodes call a uid differently."""
    uids: frozenset[int]
    """Numbers that nobody else has: not root's, and not of Kubernetes, where containers share them."""
    jobs: frozenset[Job]
    numbers: frozenset[int]
    """Of incidents."""
    running: tuple[str, ...] = ()
    """Ids of jobs that had not ended when they were last written."""
    words: frozenset[str] = frozenset()
    """Job ids, names of jobs, paths of scripts, by which other files speak of the person; see ``words_of``."""
    decided: frozenset[tuple[str, float]] = frozenset()
    """Id and time of decisions about these jobs."""
    opened: frozenset[tuple[int, float]] = frozenset()
    """Number and time of opening of the incidents."""


class PersonStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, name: str, uids: Collection[int] = ()) -> Person:
        """The person of this name. ``uids``: numbers that the caller knows to be theirs."""
        with self._database.reading() as connection:
            return _find(connection, name, uids)

    def names(self) -> frozenset[str]:
        """The names of all users of whom something is kept, of those who acted or answered among them."""
        columns = [job_records.c.user_name, incidents.c.user_name, *(table.c.by_name for table in _BY_PEOPLE)]
        with self._database.reading() as connection:
            found = [connection.scalars(select(column).distinct()).all() for column in columns]
        return frozenset(name for names in found for whole in names if whole for name in whole.split(OWNER_SEPARATOR))

    def rows(self, person: Person) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """All rows about a person by table, each value unpacked; every table is named."""
        with self._database.reading() as connection:
            return {
                table.name: [_readable(row) for row in _rows(connection, table, person)]
                for table in (*_OF_JOBS, *_OF_INCIDENTS, *_BY_PEOPLE)
            }

    def forget(
        self, person: Person, pseudonym: str, *, at_s: float, before_commit: Callable[[], None] = lambda: None
    ) -> Mapping[str, int]:
        """Delete the person's rows, or put ``pseudonym`` in place of the person where a row must stay; returns the
        number of rows by table. All or nothing.

        Nobody else writes from the first change until this returns; ``before_commit`` is called within that time.
        """
        with self._database.writing() as connection:
            if self._database.dialect == "postgresql":
                names = ", ".join(table.name for table in metadata.sorted_tables)
                connection.execute(text(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE"))
            person = _find(connection, person.name, person.uids)  # somebody may have written since
            done = _forget(connection, person, alias_of(pseudonym, {job[0] for job in person.jobs}), at_s)
            before_commit()
        return done

    def clear_traces(self) -> None:
        """Rewrite the files, so that what was deleted is not on free pages of them. Takes seconds for a gigabyte."""
        self._database.compact()

    def mentions(self, names: Collection[str]) -> int:
        """The number of rows that have one of ``names`` as a word: after ``forget`` these belong to others."""
        said = re.compile("|".join(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])" for name in sorted(names)))
        texts = [(table, column) for table in metadata.sorted_tables for column in table.c if _is_text(column)]
        found = set()
        with self._database.reading() as connection:
            for table, column in texts:
                keys = list(table.primary_key.columns)
                likely = select(*keys, column.label("said")).where(_any_in(column, names))
                for row in connection.execute(likely.execution_options(yield_per=LARGE_ROWS_AT_ONCE)):
                    if said.search(row.said):
                        found.add((table.name, tuple(row[:-1])))
        return len(found)


def _is_text(column: ColumnElement[Any]) -> bool:
    return str(column.type) == "TEXT"


def _any_in(column: ColumnElement[Any], names: Collection[str]) -> ColumnElement[bool]:
    first, *others = (column.contains(name, autoescape=True) for name in sorted(names))
    whether = first
    for other in others:
        whether = whether | other
    return whether


def _find(connection: Connection, name: str, uids: Collection[int]) -> Person:
    theirs = {column_name(name), *map(str, uids)}
    owned = [_owned(connection, table) for table in (job_records, incidents)]
    rows = [row for found in owned for row in found if theirs & set(row.user_name.split(OWNER_SEPARATOR))]
    jobs = frozenset((row.job_id, row.attempt, row.uid) for row in rows)
    others = frozenset((row.job_id, row.attempt, row.uid) for found in owned for row in found) - jobs
    alone = {row.uid for row in rows if row.user_name in theirs and namespace_of(row.job_id) is None}
    numbers = {uid for uid in {*uids, *alone} if uid not in (_ROOT, FORGOTTEN_UID)}
    nameless = {
        job
        for table in (evidence, profiles)
        for job in map(tuple, connection.execute(select(*(table.c[part] for part in _KEY)).distinct()))
        if job not in others and job[2] in numbers and namespace_of(job[0]) is None
    }
    found = frozenset(row.number for row in owned[1] if (row.job_id, row.attempt, row.uid) in jobs)
    running = {row.job_id for row in rows if row.ended_s is None}
    person = Person(
        name,
        names=frozenset({name, *(row.user_name for row in rows)}),
        uids=frozenset(numbers),
        jobs=jobs | nameless,
        numbers=found | _orphans(connection, theirs),
        running=tuple(sorted(running)),
    )
    return _with_words(connection, person)


def _owned(connection: Connection, table: Table) -> Sequence[Row[Any]]:
    columns: list[ColumnElement[Any]] = [*(table.c[part] for part in _KEY), table.c.user_name]
    columns += [table.c.ended_s] if table is job_records else [table.c.closed_s.label("ended_s"), table.c.number]
    found: Sequence[Row[Any]] = connection.execute(select(*columns)).all()
    return found


def _orphans(connection: Connection, names: Collection[str]) -> frozenset[int]:
    """Numbers of incidents that are not there any more, of which decisions are."""
    kept = select(incidents.c.number)
    query = select(decisions.c.incident_number, decisions.c.value).where(decisions.c.incident_number.not_in(kept))
    rows = connection.execute(query.execution_options(yield_per=ROWS_AT_ONCE))
    return frozenset(row.incident_number for row in rows if _user_of(row.value) in names)


def _user_of(value: str) -> str:
    told = json.loads(value).get("incident", {})
    return column_name(str(told.get("user_name", "")))


def _with_words(connection: Connection, person: Person) -> Person:
    words, opened, decided = {job[0] for job in person.jobs}, set(), set()
    for row in _rows(connection, job_records, person):
        raw = json.loads(row.value)
        words |= {str(raw[part]) for part in ("job_name", "array", "script", "arguments") if raw.get(part)}
    for row in _rows(connection, incidents, person):
        raw = json.loads(row.value)
        words |= {str(raw[part]) for part in ("job_name", "array_name", "group_name") if raw.get(part)}
        opened.add((row.number, row.opened_s))
    for row in _rows(connection, decisions, person):
        decided.add((row.decision_id, row.decided_s))
        opened.add((row.incident_number, json.loads(row.value)["incident"]["opened_unix_s"]))
    return person._replace(words=frozenset(words), opened=frozenset(opened), decided=frozenset(decided))


def _rows(connection: Connection, table: Table, person: Person) -> Iterator[Row[Any]]:
    """The rows of one table about a person, in the order of its key."""
    query = select(table).order_by(*table.primary_key.columns)
    if table in _OF_JOBS:
        query = query.where(table.c.job_id.in_({job[0] for job in person.jobs}))
    elif table not in _BY_PEOPLE:
        number = table.c.incident_number if table is decisions else table.c.number
        query = query.where(number.in_(person.numbers))
    for row in connection.execute(query.execution_options(yield_per=LARGE_ROWS_AT_ONCE)):
        if _is_about(row, table, person):
            yield row


def _is_about(row: Row[Any], table: Table, person: Person) -> bool:
    if table in _OF_JOBS:
        return (row.job_id, row.attempt, row.uid) in person.jobs
    return table not in _BY_PEOPLE or row.number in person.numbers or row.by_name in person.names


def _readable(row: Row[Any]) -> dict[str, Any]:
    shown = dict(row._mapping)
    value = shown.get("value")
    if isinstance(value, (bytes, memoryview)):
        value = zlib.decompressobj().decompress(bytes(value), _MAX_UNPACKED_BYTES).decode()
    if isinstance(value, str):
        shown["value"] = json.loads(value)
        packed = shown["value"].get("packed") if isinstance(shown["value"], dict) else None
        if packed:
            shown["value"]["packed"] = _unpacked(packed)
    return shown


def _unpacked(packed: str) -> Any:
    """A memory profile as JSON; as it is if it cannot be read."""
    try:
        return json.loads(zlib.decompressobj().decompress(base64.b64decode(packed), _MAX_UNPACKED_BYTES))
    except (zlib.error, binascii.Error, ValueError):
        return packed


def _forget(connection: Connection, person: Person, alias: Alias, at_s: float) -> Mapping[str, int]:
    done = Counter[str]()
    for table in (job_memory, evidence, profiles, job_records):  # memory first, which goes with its record
        keys = [tuple(getattr(row, key.name) for key in table.primary_key) for row in _rows(connection, table, person)]
        for key in keys:
            connection.execute(delete(table).where(*(col == part for col, part in zip(table.primary_key, key))))
        done[table.name] += len(keys)
    done[grades.name] = _forget_grades(connection, person, alias)
    done[acts.name] = _forget_acts(connection, person, alias)
    for row in list(_rows(connection, decisions, person)):
        _bare_decision(connection, row, alias, at_s)
        done[decisions.name] += 1
    for number in sorted(person.numbers):
        done[incident_memory.name] += connection.execute(delete(incident_memory).filter_by(number=number)).rowcount
        for seq, value in connection.execute(
            select(incident_changes.c.seq, incident_changes.c.value).filter_by(number=number)
        ).all():
            line = INCIDENT.write(incident_without_person(INCIDENT.read(value), alias))
            connection.execute(update(incident_changes).filter_by(seq=seq).values(value=line))
            done[incident_changes.name] += 1
        done[incidents.name] += _bare_incident(connection, number, alias, at_s)
    return done


def _bare_incident(connection: Connection, number: int, alias: Alias, at_s: float) -> int:
    value = connection.scalar(select(incidents.c.value).filter_by(number=number))
    if value is None:
        return 0
    bare = incident_without_person(INCIDENT.read(value), alias, ended_s=at_s)
    changes = {
        "job_id": column_name(bare.key.job.job_id),
        "uid": bare.key.job.uid,
        "rank_group": bare.key.job.group,
        "user_name": column_name(bare.user_name),
        "state": bare.state.value,
        "closed_s": bare.closed_unix_s,
        "value": INCIDENT.write(bare),
    }
    connection.execute(update(incidents).filter_by(number=number).values(changes))
    return 1


def _bare_decision(connection: Connection, row: Row[Any], alias: Alias, at_s: float) -> None:
    changes: dict[str, Any] = {"value": DECISION.write(decision_without_person(DECISION.read(row.value), alias))}
    if row.detail is not None:
        changes["detail"] = REMOVED
    if row.status != DecisionStatus.FINISHED.value:
        changes |= {
            "status": DecisionStatus.FINISHED.value, "outcome": Outcome.SUPERSEDED.value, "finished_s": at_s,
            "detail": REMOVED,
        }  # fmt: skip
        counts.add_one(connection, counts.ACTIONS, row.action, Outcome.SUPERSEDED.value)
    connection.execute(update(decisions).filter_by(seq=row.seq).values(changes))


def _forget_grades(connection: Connection, person: Person, alias: Alias) -> int:
    """Of the person's incidents the answers stay, of the person's own answers the grade; comments go."""
    rows = list(_rows(connection, grades, person))
    for row in rows:
        by_name = alias.name if row.by_name in person.names else row.by_name
        connection.execute(update(grades).filter_by(seq=row.seq).values(by_name=by_name, comment=None))
    return len(rows)


def _forget_acts(connection: Connection, person: Person, alias: Alias) -> int:
    """Of the person's incidents the acts stay, of the person's own acts what they were; words and accounts go."""
    rows = list(_rows(connection, acts, person))
    for row in rows:
        by_name, sender = (alias.name, None) if row.by_name in person.names else (row.by_name, row.sender)
        changes = {"by_name": by_name, "sender": sender, "detail": None}
        connection.execute(update(acts).filter_by(seq=row.seq).values(changes))
    return len(rows)
