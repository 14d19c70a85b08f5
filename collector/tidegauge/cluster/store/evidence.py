"""Pieces of evidence, limited per job, per tenant and in all, so that nobody can fill the disk."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, delete, select

from tidegauge.cluster.store import counts
from tidegauge.cluster.store.database import LARGE_ROWS_AT_ONCE, Database, StoreError
from tidegauge.cluster.store.room import Room, delete_beyond, keep_shares
from tidegauge.cluster.store.tables import evidence, incidents
from tidegauge.cluster.store.values import EVIDENCE, column_name, fits_column
from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.rank_evidence import ids_so_far
from tidegauge.core.ids import JobKey

MAX_PIECE_CHARS = 400_000
"""Of one piece: ten times one with all its stacks. They come from a job."""

ROOM = Room(of_job=40, of_tenant=1000, in_all=5000)
"""Incidents keep a short form of the evidence that is deleted."""


class KeptEvidence(NamedTuple):
    """A piece, and the time when it was written down (policy clock)."""

    kept_s: float
    evidence: Evidence


class EvidenceStore:
    """Thread-safe. Every method raises ``StoreError``."""

    def __init__(self, database: Database, room: Room = ROOM) -> None:
        self._database = database
        self._room = room

    def keep(self, pieces: Sequence[Evidence], *, at_s: float) -> Collection[Evidence]:
        """Write all pieces or, with an error, none; returns the new ones.

        A piece that is too large even without its flame graph is left out. Whole evidence takes the place of what was
        known while its rank still searched.
        """
        if not pieces:
            return ()
        with self._database.writing() as connection:
            new = [piece for piece in pieces if _insert(connection, piece, at_s)]
            for piece in new:
                _delete_so_far(connection, piece)
            for job in {piece.job.whole for piece in new}:
                delete_beyond(connection, evidence, self._room.of_job, _of_job(job))
            if new:
                keep_shares(connection, evidence, self._room)
        return new

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Evidence]:
        """The newest ``limit`` of one attempt of a job, newest first."""
        return [kept.evidence for kept in self._newest(_of_job(job), limit)][::-1]

    def recent(self, *, since_s: float, limit: int) -> Iterator[KeptEvidence]:
        """The newest ``limit`` of those written down at or after ``since_s``, oldest first, one at a time."""
        return self._newest(evidence.c.kept_s >= since_s, limit)

    def of_open_incidents(self, *, limit: int) -> Iterator[KeptEvidence]:
        """The newest ``limit`` of jobs with an open incident, oldest first, one at a time."""
        return self._newest(_has_incident(incidents.c.closed_s.is_(None)), limit)

    def open_among(self, jobs: Collection[JobKey]) -> frozenset[JobKey]:
        """The ones of ``jobs`` with an open incident, about any group of their ranks."""
        columns = (incidents.c.job_id, incidents.c.attempt, incidents.c.uid)
        with self._database.reading() as connection:
            rows = connection.execute(select(*columns).where(incidents.c.closed_s.is_(None)).distinct()).all()
        found = {tuple(row) for row in rows}
        return frozenset(job for job in jobs if (column_name(job.job_id), job.attempt, job.uid) in found)

    def _newest(self, where: ColumnElement[bool], limit: int) -> Iterator[KeptEvidence]:
        """Oldest first, one at a time: a thousand pieces would take a gigabyte."""
        newest = select(evidence.c.seq).where(where).order_by(evidence.c.seq.desc()).limit(limit)
        query = select(evidence).where(evidence.c.seq.in_(newest)).order_by(evidence.c.seq)
        with self._database.reading() as connection:
            for row in connection.execute(query.execution_options(yield_per=LARGE_ROWS_AT_ONCE)):
                yield _kept(row)


def delete_old(connection: Connection, *, before_s: float) -> None:
    """Delete pieces written down before ``before_s``, except those of jobs with an incident: a leak may go on for weeks
    after they were collected, and its report needs them."""
    connection.execute(delete(evidence).where(evidence.c.kept_s < before_s, ~_has_incident()))


def _has_incident(*which: ColumnElement[bool]) -> ColumnElement[bool]:
    same_job = (
        incidents.c.job_id == evidence.c.job_id,
        incidents.c.attempt == evidence.c.attempt,
        incidents.c.uid == evidence.c.uid,
    )
    return select(incidents.c.number).where(*same_job, *which).exists()


def _of_job(job: JobKey) -> ColumnElement[bool]:
    return (
        (evidence.c.job_id == column_name(job.job_id))
        & (evidence.c.attempt == job.attempt)
        & (evidence.c.uid == job.uid)
    )


def _insert(connection: Connection, piece: Evidence, at_s: float) -> bool:
    value = _text(piece)
    if value is None:
        return False
    insert = counts.insert_into(connection, evidence).values(
        evidence_id=column_name(piece.evidence_id),
        job_id=column_name(piece.job.job_id),
        attempt=piece.job.attempt,
        uid=piece.job.uid,
        rank=piece.rank,
        kept_s=at_s,
        value=value,
    )
    once = [evidence.c.job_id, evidence.c.attempt, evidence.c.uid, evidence.c.evidence_id]
    insert = insert.on_conflict_do_nothing(index_elements=once)
    return connection.execute(insert, execution_options={"preserve_rowcount": True}).rowcount == 1


def _delete_so_far(connection: Connection, piece: Evidence) -> None:
    if not piece.searching:
        ids = [column_name(one) for one in ids_so_far(piece.evidence_id)]
        connection.execute(delete(evidence).where(_of_job(piece.job), evidence.c.evidence_id.in_(ids)))


def _text(piece: Evidence) -> str | None:
    """The piece as text; ``None`` if the database cannot take it."""
    if not fits_column(piece.rank, piece.job.attempt, piece.job.uid):
        return None
    for shortened in (piece, replace(piece, live=())):
        text = EVIDENCE.write(shortened)
        if len(text) <= MAX_PIECE_CHARS:
            return text
    return None


def _kept(row: Row[Any]) -> KeptEvidence:
    try:
        return KeptEvidence(row.kept_s, EVIDENCE.read(row.value))
    except ValueError as error:
        raise StoreError(f"evidence {row.evidence_id} in the database cannot be read: {error}") from error
