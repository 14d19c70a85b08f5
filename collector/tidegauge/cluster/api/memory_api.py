"""Pages of the HTTP API on the memory of ranks: its history, and the evidence of growth. Read only, bounded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from tidegauge.cluster.api.http_api import BadRequestError, Request, Route
from tidegauge.cluster.api.loop_api import store_route, visible_incident
from tidegauge.cluster.api.loop_reads import EvidenceReads, IncidentReads, LoopStore
from tidegauge.cluster.api.route_access import Owns, may_see
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.evidence import Evidence, brief_of
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.incidents.evidence import belongs, says_most_first
from tidegauge.core.job_records.incident_curves import incident_curves
from tidegauge.core.job_records.memory import RankMemory
from tidegauge.http.access import Viewer

log = logging.getLogger(__name__)

MAX_RANKS = 64
"""Ranks in one answer, the ones to look at first: about 1 MB."""
MAX_JOB_ID_CHARS = 1024
"""As a ring may claim."""
MAX_PIECES = 16
"""In one answer: some 6 MB."""
MAX_PIECES_READ = 40
"""Pieces of a job that the ones of an incident are looked for in: all that are kept."""


class JobAsked(NamedTuple):
    """The job of a request; ``uid=None``: any owner."""

    job_id: str
    attempt: int
    uid: int | None
    group: str = ""
    """Which of its groups of ranks, as ``JobKey.group``."""

    @classmethod
    def of(cls, request: Request) -> JobAsked:
        """Read ``job_id``, ``attempt``, ``uid`` and ``group``. Raises ``BadRequestError``."""
        return cls(
            request.text("job_id", most_chars=MAX_JOB_ID_CHARS),
            request.number("attempt", default=0),
            request.number("uid", default=0) if "uid" in request.query else None,
            request.text("group", most_chars=MAX_JOB_ID_CHARS) if request.query.get("group") else "",
        )


def rank_asked(request: Request) -> int | None:
    """The rank of a request, if it names one. Raises ``BadRequestError``."""
    return request.number("rank", default=0) if "rank" in request.query else None


def memory_routes(coordinator: Coordinator, store: Callable[[], LoopStore]) -> dict[str, Route]:
    """Routes by path. ``store`` raises ``AuditError`` while the database is not open."""

    def of_incident(request: Request) -> object:
        tables, rank = store(), rank_asked(request)
        incident = visible_incident(tables, request.number("incident", default=0), request.viewer)
        curves = curves_of_incident(coordinator, tables.incidents, incident)
        return {**incident.key.job._asdict(), "ranks": [one for one in curves if rank in (None, one.rank)]}

    def memory(request: Request) -> object:
        if "incident" in request.query:
            return of_incident(request)
        job, rank = JobAsked.of(request), rank_asked(request)
        whose = job if request.viewer.sees_all else _theirs(coordinator, job, request.viewer)
        found = {} if whose is None else coordinator.memory(
            whose.job_id, whose.attempt, whose.uid, group=whose.group, rank=rank, most=MAX_RANKS
        )  # fmt: skip
        ranks = [RankMemory(number, points) for number, points in found.items()]
        if len(ranks) < (MAX_RANKS if rank is None else 1):
            ranks += [one for one in _kept(store, job, request.viewer, rank, found.keys()) if one.rank not in found]
        return {**job._asdict(), "ranks": ranks}

    return {"/api/v1/memory": store_route(memory)}


def curves_of_incident(coordinator: Coordinator, kept: IncidentReads, incident: Incident) -> tuple[RankMemory, ...]:
    """How the memory of an incident's ranks went, the one to look at first first, as far as it is known."""
    job = next((view for view in coordinator.jobs() if view.ranks and view.key == incident.key.job), None)
    try:
        stored = kept.memory(incident.number)
    except AuditError as error:
        log.warning("the memory of incident %d cannot be read: %s", incident.number, error)
        stored = ()
    return incident_curves(incident, job, coordinator.history_of, stored)


def _kept(
    store: Callable[[], LoopStore], job: JobAsked, viewer: Viewer, rank: int | None, watched: Collection[int]
) -> Sequence[RankMemory]:
    """What the latest record of a job keeps of the memory of its ranks, if the viewer may see it. Raises ``AuditError``
    where nothing else is known."""
    if job.uid is None or job.group:
        return ()
    key = JobKey(job.job_id, job.attempt, job.uid)
    try:
        records = store().jobs
        record = records.latest([key]).get(key)
        memory = records.memory(record) if record is not None and viewer.sees(record.user_name, job.job_id) else None
    except AuditError:
        if watched:
            return ()
        raise
    return () if memory is None else [one for one in memory.curves if rank in (None, one.rank)]


def _theirs(coordinator: Coordinator, asked: JobAsked, viewer: Viewer) -> JobAsked | None:
    """The job with its owner's uid, if it is watched and the viewer's."""
    for job in coordinator.jobs():
        uid = job.ranks[0].uid if job.ranks else None
        if (job.job_id, job.attempt) == asked[:2] and asked.uid in (None, uid) and may_see(viewer, job):
            return asked._replace(uid=uid)
    return None


def _evidence_of(table: EvidenceReads, incident: Incident, *, limit: int) -> tuple[Evidence, ...]:
    """The evidence of an incident, most informative first. Raises ``AuditError``."""
    found = {
        piece.evidence_id: piece
        for piece in table.of_job(incident.key.job, limit=MAX_PIECES_READ)
        if piece.job.group == incident.key.job.group and belongs(brief_of(piece), incident.key.cause)
    }
    return tuple(found[brief.evidence_id] for brief in says_most_first(map(brief_of, found.values())))[:limit]


def evidence_routes(store: Callable[[], LoopStore], owns: Owns = lambda viewer, _: viewer.sees_all) -> dict[str, Route]:
    """Routes by path. ``store`` and ``owns`` raise ``AuditError`` while the database is not open."""

    def evidence(request: Request) -> object:
        limit = request.number("limit", default=MAX_PIECES, most=MAX_PIECES)
        if "incident" not in request.query:
            job = JobAsked.of(request)
            if job.uid is None:
                raise BadRequestError("uid is missing: the job's owner")
            key = JobKey(job.job_id, job.attempt, job.uid, job.group)
            # A job of somebody else looks like one that is not known.
            found = store().evidence.of_job(key, limit=MAX_PIECES_READ) if owns(request.viewer, key) else ()
            return {"evidence": [piece for piece in found if piece.job.group == key.group][:limit]}
        number, tables = request.number("incident", default=0), store()
        incident = visible_incident(tables, number, request.viewer)
        return {"evidence": _evidence_of(tables.evidence, incident, limit=limit)}

    return {"/api/v1/evidence": store_route(evidence)}
