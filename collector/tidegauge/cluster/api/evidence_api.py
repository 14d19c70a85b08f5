"""The HTTP API's page on evidence: which line allocates what grows, and what holds it. Read only, bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request, Route, UnavailableError, json_route
from tidegauge.cluster.api.memory_api import JobAsked
from tidegauge.cluster.api.ownership import Owns
from tidegauge.core.evidence import Evidence, brief_of
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.incidents.evidence import belongs, says_most_first

MAX_PIECES = 16
"""In one answer: some 6 MB."""
MAX_PIECES_READ = 40
"""Pieces of a job that the ones of an incident are looked for in: all that are kept."""


class EvidenceReads(Protocol):
    """``store.EvidenceStore`` as far as it is read here. Raises ``AuditError``."""

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Evidence]:
        """The newest first."""


class IncidentRead(Protocol):
    """``store.IncidentStore`` as far as it is read here. Raises ``AuditError``."""

    def incident(self, number: int, /) -> Incident | None: ...


class EvidenceStoreReads(Protocol):
    """The database as far as it is read here."""

    @property
    def incidents(self) -> IncidentRead: ...

    @property
    def evidence(self) -> EvidenceReads: ...


def evidence_of(table: EvidenceReads, incident: Incident, *, limit: int = MAX_PIECES) -> tuple[Evidence, ...]:
    """The pieces that belong to an incident, the one that says most first. Raises ``AuditError``."""
    found = {
        piece.evidence_id: piece
        for piece in table.of_job(incident.key.job, limit=MAX_PIECES_READ)
        if piece.job.group == incident.key.job.group and belongs(brief_of(piece), incident.key.cause)
    }
    return tuple(found[brief.evidence_id] for brief in says_most_first(map(brief_of, found.values())))[:limit]


def evidence_routes(
    store: Callable[[], EvidenceStoreReads], owns: Owns = lambda viewer, _: viewer.sees_all
) -> dict[str, Route]:
    """Pages by path. ``store`` raises ``AuditError`` for as long as there is none, and so may ``owns``."""

    def evidence(request: Request) -> object:
        limit = request.number("limit", default=MAX_PIECES, most=MAX_PIECES)
        try:
            if "incident" not in request.query:
                job = JobAsked.of(request)
                if job.uid is None:
                    raise BadRequestError("uid is missing: the job's owner")
                key = JobKey(job.job_id, job.attempt, job.uid, job.group)
                # Nothing of somebody else's looks like nothing of a job that is not known.
                found = store().evidence.of_job(key, limit=MAX_PIECES_READ) if owns(request.viewer, key) else ()
                return {"evidence": [piece for piece in found if piece.job.group == key.group][:limit]}
            number, tables = request.number("incident", default=0), store()
            incident = tables.incidents.incident(number)
            if incident is None or not request.viewer.sees(incident.user_name):
                raise NotFoundError(f"no incident {number}; `tidegauge incidents --all` lists all incidents")
            return {"evidence": evidence_of(tables.evidence, incident, limit=limit)}
        except AuditError as error:
            raise UnavailableError(f"the database of incidents and actions is unavailable: {error}") from error

    return {"/api/v1/evidence": json_route(evidence)}
