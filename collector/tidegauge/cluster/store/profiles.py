"""The latest memory profile of each rank of a job, limited per job, per tenant and in all."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Connection, delete, func, select

from tidegauge.cluster.store.database import LARGE_ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.room import Room, delete_beyond, keep_shares
from tidegauge.cluster.store.tables import job_records, profiles
from tidegauge.cluster.store.values import RANK_PROFILE, column_name, fits_column, is_whole_name
from tidegauge.core.ids import JobKey
from tidegauge.core.profile.rank_profile import RankProfile

MAX_PROFILE_CHARS = 450_000
"""Of one row: ``stored_profile.MAX_PACKED_BYTES`` in base64, and what is beside it. Ordinary ones have some 10,000."""
ROOM = Room(of_job=256, of_tenant=2000, in_all=10_000)
"""Some 100 MB; of a larger job the latest."""


class ProfileStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database, room: Room = ROOM) -> None:
        self._database = database
        self._room = room

    def keep(self, found: Sequence[RankProfile], *, at_s: float) -> None:
        """Write all profiles or, with an error, none; each replaces an older one of its rank. What the database cannot
        take is left out."""
        rows = [(one, RANK_PROFILE.write(one)) for one in found if fits_column(one.rank, one.job.attempt, one.job.uid)]
        rows = [(one, value) for one, value in rows if len(value) <= MAX_PROFILE_CHARS]
        if not rows:
            return
        with self._database.writing() as connection:
            for one, value in rows:
                _put(connection, one, value, at_s)
            for job in {one.job.whole for one, _ in rows}:
                delete_beyond(connection, profiles, self._room.of_job, *_of_job(job))
            keep_shares(connection, profiles, self._room)

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[RankProfile]:
        """The profiles of one group of ranks of a job, by rank."""
        query = select(profiles).where(*_of_group(job)).order_by(profiles.c.rank).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(query.execution_options(yield_per=LARGE_ROWS_AT_ONCE))
            return [_profile(row.value) for row in rows]

    def ranks_of(self, job: JobKey, *, limit: int) -> Sequence[int]:
        """The ranks of one group of a job that have a profile, without reading these."""
        query = select(profiles.c.rank).where(*_of_group(job)).order_by(profiles.c.rank).limit(limit)
        with self._database.reading() as connection:
            return list(connection.scalars(query))

    def of_rank(self, job: JobKey, rank: int) -> RankProfile | None:
        """The profile of one rank."""
        query = select(profiles.c.value).where(*_of_group(job), profiles.c.rank == rank)
        with self._database.reading() as connection:
            value = connection.scalar(query) if fits_column(rank) else None
        return None if value is None else _profile(value)

    def newest(self, *, limit: int) -> Sequence[tuple[JobKey, float]]:
        """The groups of ranks of jobs that have a profile, and when their newest one was written down, newest first.
        Reads no profile but of a job whose name a column cannot hold as it is."""
        group = (profiles.c.job_id, profiles.c.attempt, profiles.c.uid, profiles.c.rank_group)
        last = func.max(profiles.c.seq).label("last")
        groups = select(last).group_by(*group).order_by(last.desc()).limit(limit).subquery()
        query = (
            select(profiles.c.seq, *group, profiles.c.kept_s)
            .where(profiles.c.seq.in_(select(groups.c.last)))
            .order_by(profiles.c.seq.desc())
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
            return [(_real(connection, seq, JobKey(*job)), kept_s) for seq, *job, kept_s in rows]

    def prune(self, *, before_s: float) -> None:
        """Delete profiles written down before ``before_s``, except those of jobs that there is a record of."""
        with self._database.writing() as connection:
            connection.execute(delete(profiles).where(profiles.c.kept_s < before_s, ~_has_record()))


def _has_record() -> ColumnElement[bool]:
    same_job = (
        job_records.c.job_id == profiles.c.job_id,
        job_records.c.attempt == profiles.c.attempt,
        job_records.c.uid == profiles.c.uid,
    )
    return select(job_records.c.job_id).where(*same_job).exists()


def _put(connection: Connection, one: RankProfile, value: str, at_s: float) -> None:
    where = (*_of_group(one.job), profiles.c.rank == one.rank)
    known = connection.scalar(select(profiles.c.value).where(*where))
    if known is not None and _profile(known).at_unix_s > one.at_unix_s:
        return
    connection.execute(delete(profiles).where(*where))
    connection.execute(
        profiles.insert().values(
            job_id=column_name(one.job.job_id),
            attempt=one.job.attempt,
            uid=one.job.uid,
            rank_group=column_name(one.job.group),
            rank=one.rank,
            kept_s=at_s,
            value=value,
        )
    )


def _real(connection: Connection, seq: int, job: JobKey) -> JobKey:
    """The job as it calls itself, for one as its row's columns call it."""
    if is_whole_name(job.job_id) and is_whole_name(job.group):
        return job
    return _profile(connection.execute(select(profiles.c.value).where(profiles.c.seq == seq)).scalar_one()).job


def _of_job(job: JobKey) -> tuple[ColumnElement[bool], ...]:
    same_id = profiles.c.job_id == column_name(job.job_id)
    return same_id, profiles.c.attempt == job.attempt, profiles.c.uid == job.uid


def _of_group(job: JobKey) -> tuple[ColumnElement[bool], ...]:
    return *_of_job(job), profiles.c.rank_group == column_name(job.group)


def _profile(value: str) -> RankProfile:
    try:
        return RANK_PROFILE.read(value)
    except ValueError as error:
        raise StoreError(f"a memory profile in the database cannot be read: {error}") from error
