"""Records of jobs, limited per tenant and in all, so that nobody can fill the disk."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, bindparam, delete, func, select, tuple_

from tidegauge.cluster.store import counts
from tidegauge.cluster.store.database import ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.memory import memory_in, put_rows, write_memory
from tidegauge.cluster.store.tables import is_of, job_memory, job_records, namespace_of
from tidegauge.cluster.store.values import JOB_RECORD, column_name, escaped_name, fits_column
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.job_records.search import ANY, EVERY_ENDED, RecordFilter, RecordSought
from tidegauge.core.jobs.right_size import outside_bytes
from tidegauge.core.jobs.tenants import tenant_of

_KEY = (job_records.c.job_id, job_records.c.attempt, job_records.c.uid, job_records.c.started_s)


ROOM_MADE = 0.1
"""Of ``memory_bytes``, beyond what is too much: that takes a second with 100,000 records, so not at each write."""
MAX_GPUS = 1 << 20
"""Of one job: its ranks may claim any number."""


class RecordRoom(NamedTuple):
    """Maximum numbers of records; those that were updated longest ago are deleted beyond them."""

    of_tenant: int = 20_000
    """Of a user, or on Kubernetes of a namespace."""
    in_all: int = 100_000
    """About 100 MB. Beyond it the oldest of the tenant who has most goes."""
    memory_bytes: int = 1 << 29
    """Of the memory of ranks beside them. Beyond it that of the oldest records of the tenant who has most goes; the
    records stay."""


ROOM = RecordRoom()


class JobRecordStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database, room: RecordRoom = ROOM) -> None:
        self._database = database
        self._room = room
        self._memory_bytes = float("inf")
        """What the memory of ranks takes at most: as measured, and what was written since."""

    def save(self, records: Sequence[JobRecord]) -> None:
        """Write all records or, with an error, none. A record replaces that of the same attempt and start."""
        rows = [_row(record) for record in records if fits_column(record.job.attempt, record.job.uid)]
        if not rows:
            return
        with self._database.writing() as connection:
            insert = counts.insert_into(connection, job_records)
            changed = {name: insert.excluded[name] for name in rows[0] if name not in {key.name for key in _KEY}}
            connection.execute(insert.on_conflict_do_update(index_elements=list(_KEY), set_=changed), rows)
            for tenant in {row["tenant"] for row in rows}:
                _delete_beyond(connection, self._room.of_tenant, job_records.c.tenant == tenant)
            _keep_shares(connection, self._room.in_all)

    def save_memory(self, memory: Mapping[JobRecord, JobMemory]) -> None:
        """Write the memory of ranks beside records that are saved, in place of what there was."""
        rows = {
            tuple(_key(record).values()): {**_key(record), "value": write_memory(value)}
            for record, value in memory.items()
            if fits_column(record.job.attempt, record.job.uid)
        }
        with self._database.writing() as connection:
            known = _known(connection, list(rows))  # some may have been deleted for somebody else's room
            put_rows(connection, job_memory, [rows[key] for key in known])
            held_bytes = self._memory_bytes + sum(len(rows[key]["value"]) for key in known)
            if held_bytes > self._room.memory_bytes:
                held_bytes = _keep_memory(connection, self._room.memory_bytes)
        self._memory_bytes = held_bytes

    def memory(self, record: JobRecord) -> JobMemory | None:
        """What ``save_memory`` wrote beside this record."""
        if not fits_column(record.job.attempt, record.job.uid):
            return None
        query = select(job_memory.c.value).where(*(job_memory.c[name] == part for name, part in _key(record).items()))
        with self._database.reading() as connection:
            value = connection.scalar(query)
        return memory_in(value, f"job {record.job.job_id}")

    def latest(self, jobs: Collection[JobKey]) -> Mapping[JobKey, JobRecord]:
        """The record of the latest start of each of these attempts, as far as there is one."""
        found = {}
        with self._database.reading() as connection:
            for job in jobs:
                query = select(job_records).where(*_of(job)).order_by(job_records.c.started_s.desc()).limit(1)
                row = connection.execute(query).first() if fits_column(job.attempt) else None
                if row is not None:
                    found[job] = _record(row)
        return found

    def running(self) -> Sequence[JobRecord]:
        """The records of jobs that were running when they were last written."""
        with self._database.reading() as connection:
            query = select(job_records).where(job_records.c.ended_s.is_(None))
            return [_record(row) for row in connection.execute(query)]

    def ended(self, which: RecordFilter = EVERY_ENDED, *, limit: int) -> Sequence[JobRecord]:
        """The newest ``limit`` records of jobs that ended, the last one first."""
        with self._database.reading() as connection:
            query = select(job_records).where(*_matching(connection, which))
            newest_first = query.order_by(job_records.c.ended_s.desc(), *_KEY).limit(limit)
            return [_record(row) for row in connection.execute(newest_first.execution_options(yield_per=ROWS_AT_ONCE))]

    def count_ended(self, which: RecordFilter = EVERY_ENDED) -> int:
        """The number of records that ``ended`` gives without a limit."""
        with self._database.reading() as connection:
            query = select(func.count()).select_from(job_records).where(*_matching(connection, which))
            return connection.scalar(query) or 0

    def starts(self, sought: RecordSought, *, limit: int) -> Sequence[JobRecord]:
        """Records of every attempt and start of what is sought, the newest start first, running jobs too."""
        numbers = [number for number in (sought.attempt, sought.uid) if number is not None]
        if not fits_column(*numbers):
            return []
        query = select(job_records).where(*_named(sought)).order_by(job_records.c.started_s.desc(), *_KEY)
        with self._database.reading() as connection:
            return [_record(row) for row in connection.execute(query.limit(limit))]

    def namespaces(self) -> frozenset[str]:
        """Namespaces of Kubernetes that any job with a record was in."""
        query = select(namespace_of(job_records)).distinct()
        with self._database.reading() as connection:
            return frozenset(one.removesuffix("/") for one in connection.scalars(query)) - {""}

    def prune(self, *, before_s: float) -> None:
        """Delete records of jobs that ended before ``before_s``."""
        with self._database.writing() as connection:
            connection.execute(delete(job_records).where(job_records.c.ended_s < before_s))


def _of(job: JobKey) -> list[ColumnElement[bool]]:
    same_id = job_records.c.job_id == column_name(job.job_id)
    return [same_id, job_records.c.attempt == job.attempt, job_records.c.uid == job.uid]


def _matching(connection: Connection, which: RecordFilter) -> list[ColumnElement[bool]]:
    columns = job_records.c
    wanted: list[ColumnElement[bool]] = [columns.ended_s >= which.since_s]
    if which.until_s is not None:
        wanted.append(columns.ended_s < which.until_s)
    if which.how is not None:
        wanted.append(columns.how == which.how.value)
    if which.account is not None:
        wanted.append(columns.account == column_name(which.account))
    if which.job_name is not None and ANY in which.job_name:
        wanted.append(like(connection, columns.job_name, escaped_name(which.job_name)))
        which = which._replace(job_name=None)
    if which.within is not None:
        wanted.append(is_of(job_records, which.within))
    return [*wanted, *_named(RecordSought(which.job_id, which.job_name, user_name=which.user_name))]


def _named(sought: RecordSought) -> list[ColumnElement[bool]]:
    columns = job_records.c
    wanted: list[ColumnElement[bool]] = []
    if sought.job_id is not None:
        name = column_name(sought.job_id)
        wanted.append((columns.job_id == name) | (columns.array_name == name))
    if sought.job_name is not None:
        wanted.append(columns.job_name == column_name(sought.job_name))
    if sought.attempt is not None:
        wanted.append(columns.attempt == sought.attempt)
    if sought.uid is not None:
        wanted.append(columns.uid == sought.uid)
    if sought.user_name is not None:
        wanted.append(is_of(job_records, sought.user_name))
    return wanted


def like(connection: Connection, column: ColumnElement[str], pattern: str) -> ColumnElement[bool]:
    """``pattern`` with ``ANY``, by case: SQLite's LIKE is not by case, and PostgreSQL has no GLOB."""
    if connection.dialect.name == "sqlite":
        return column.op("GLOB", is_comparison=True)(pattern.replace("[", "[[]").replace("?", "[?]"))
    literal = pattern.replace("!", "!!").replace("%", "!%").replace("_", "!_")
    return column.like(literal.replace(ANY, "%"), escape="!")


def _key(record: JobRecord) -> dict[str, Any]:
    job = record.job
    return {
        "job_id": column_name(job.job_id),
        "attempt": job.attempt,
        "uid": job.uid,
        "started_s": record.started_unix_s,
    }


def _known(connection: Connection, keys: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Those of the keys that there is a record of."""
    found: list[tuple[Any, ...]] = []
    for at in range(0, len(keys), ROWS_AT_ONCE):
        found += map(tuple, connection.execute(select(*_KEY).where(tuple_(*_KEY).in_(keys[at : at + ROWS_AT_ONCE]))))
    return found


def _row(record: JobRecord) -> dict[str, Any]:
    job = record.job
    return {
        **_key(record),
        "tenant": column_name(str(tenant_of(job))),
        "user_name": column_name(record.user_name),
        "updated_s": record.updated_unix_s,
        "ended_s": record.ended_unix_s,
        "value": JOB_RECORD.write(record),
        "job_name": column_name(record.job_name or ""),
        "array_name": column_name(record.array or ""),
        "account": column_name(record.account or ""),
        "how": record.end.value if record.end is not None else "",
        "partition": column_name(record.partition or ""),
        "namespace": column_name(record.namespace or ""),
        "gpus": min(record.gpus or record.world_size, MAX_GPUS),
        "need_bytes": record.fullest.reserved_bytes + outside_bytes(record.fullest.nontorch_bytes),
        "assumed_bytes": outside_bytes(None) if record.fullest.nontorch_bytes is None else 0,
        "limit_bytes": record.fullest.limit_bytes or 0,
        "gpu_bytes": record.fullest.gpu_bytes or 0,
    }


def _record(row: Row[Any]) -> JobRecord:
    try:
        return JOB_RECORD.read(row.value)
    except ValueError as error:
        raise StoreError(f"the record of job {row.job_id} in the database cannot be read: {error}") from error


def _keep_shares(connection: Connection, most: int) -> None:
    """Delete records beyond ``most`` in all, of the tenants who have most."""
    of_tenant = select(job_records.c.tenant, func.count().label("records")).group_by(job_records.c.tenant)
    have: dict[str, int] = {row.tenant: row.records for row in connection.execute(of_tenant)}
    share = _fair_share(list(have.values()), most)
    for tenant, count in have.items():
        if count > share:
            _delete_beyond(connection, share, job_records.c.tenant == tenant)


def _keep_memory(connection: Connection, most_bytes: int) -> int:
    """Delete the memory of ranks beyond ``most_bytes`` in all, and a bit more, of the tenants who have most: of their
    records that were updated longest ago. Returns what is left."""
    rows = connection.execute(
        select(job_records.c.tenant, *job_memory.primary_key.columns, func.length(job_memory.c.value).label("bytes"))
        .join(job_memory)
        .order_by(job_records.c.updated_s)
    )
    oldest_first: dict[str, deque[tuple[int, tuple[Any, ...]]]] = defaultdict(deque)
    for row in rows:
        oldest_first[row.tenant].append((row.bytes, tuple(row[1:-1])))
    have = {tenant: sum(size for size, _ in theirs) for tenant, theirs in oldest_first.items()}
    if sum(have.values()) <= most_bytes:
        return sum(have.values())
    share = _fair_share(list(have.values()), int(most_bytes * (1.0 - ROOM_MADE)))
    gone: list[tuple[Any, ...]] = []
    for tenant, theirs in oldest_first.items():
        while have[tenant] > share:
            size, key = theirs.popleft()
            have[tenant] -= size
            gone.append(key)
    if gone:
        of_key = [column == bindparam(f"of_{column.name}") for column in job_memory.primary_key.columns]
        names = [f"of_{column.name}" for column in job_memory.primary_key.columns]
        connection.execute(delete(job_memory).where(*of_key), [dict(zip(names, one)) for one in gone])
    return sum(have.values())


def _fair_share(have: Sequence[int], most: int) -> int:
    """The largest number of records, or bytes, that each tenant may have so that all together have at most ``most``."""
    left, share = most, most
    for place, count in enumerate(sorted(have)):
        share = left // (len(have) - place)
        if count > share:
            return max(share, 1)
        left -= count
    return most


def _delete_beyond(connection: Connection, most: int, whose: ColumnElement[bool]) -> None:
    newest_first = select(*_KEY).where(whose).order_by(job_records.c.updated_s.desc(), *_KEY)
    beyond = list(connection.execute(newest_first.offset(most)))
    for at in range(0, len(beyond), ROWS_AT_ONCE):
        keys = [tuple(row) for row in beyond[at : at + ROWS_AT_ONCE]]
        connection.execute(delete(job_records).where(tuple_(*_KEY).in_(keys)))
