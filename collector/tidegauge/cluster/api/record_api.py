"""Pages of the HTTP API on what stays of jobs: the records of those that ended, what these had and needed, and one
job with its ranks, attempts and incidents. Read only, bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request, Route
from tidegauge.cluster.api.loop_api import FEW, MANY, incident_line, store_route
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.api.memory_api import MAX_JOB_ID_CHARS
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.job_records.search import RecordFilter, RecordSought
from tidegauge.core.jobs.right_size import SizedUsage, UsageBy
from tidegauge.core.wire import Wire

MAX_ATTEMPTS = 100
"""Of a job, the newest."""
MAX_INCIDENTS = 50
"""Of a job, the newest."""
NO_SUCH_RECORD = "no such job is on record"


class EndedJobPage(NamedTuple):
    """Records of jobs that ended, the last one first."""

    jobs: Sequence[JobRecord]
    left_out: int
    seen_as: str | None
    """The user to whose jobs the list is limited."""


class RecordPage(NamedTuple):
    """All that is kept of one start of a job."""

    record: JobRecord
    memory: JobMemory | None
    incidents: Sequence[Wire]
    """As ``loop_api.incident_line``."""
    attempts: Sequence[JobRecord]
    has_profile: bool
    other_uids: Sequence[int]


class RecordPages:
    """Records of jobs, as a viewer may see them. ``store`` raises ``AuditError`` while the database is not open."""

    def __init__(self, store: Callable[[], LoopStore]) -> None:
        self._store = store

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        return {
            "/api/v1/ended-jobs": store_route(self.ended_jobs),
            "/api/v1/job-record": store_route(self.job_record),
            "/api/v1/usage": store_route(self.usage),
        }

    def ended_jobs(self, request: Request) -> EndedJobPage:
        """Raises ``BadRequestError``, ``AuditError``."""
        limit = request.number("limit", default=FEW, most=MANY)
        which, store = _filter(request)._replace(within=request.viewer.only), self._store()
        shown = store.jobs.ended(which, limit=limit)
        return EndedJobPage(shown, max(store.jobs.count_ended(which) - len(shown), 0), request.viewer.seen_as)

    def job_record(self, request: Request) -> RecordPage:
        """Raises ``BadRequestError``, ``NotFoundError``, ``AuditError``."""
        sought, store = _sought(request), self._store()
        found = store.jobs.starts(sought, limit=1)
        if not found:  # a job of somebody else looks the same
            raise NotFoundError(NO_SUCH_RECORD)
        record = found[0]
        incidents = store.incidents.of_job(record.job, limit=MAX_INCIDENTS)
        same_job = RecordSought(record.job.job_id, uid=record.job.uid, user_name=request.viewer.only)
        return RecordPage(
            record=record,
            memory=store.jobs.memory(record),
            incidents=[
                incident_line(one, store.audit.records_of(one.number), store.acts.of_incident(one.number))
                for one in incidents
                if request.viewer.sees(one.user_name, one.key.job.job_id)
            ],
            attempts=store.jobs.starts(same_job, limit=MAX_ATTEMPTS),
            has_profile=bool(store.profiles.ranks_of(record.job, limit=1)),
            other_uids=_others(store.jobs.starts(sought, limit=MAX_ATTEMPTS), record),
        )

    def usage(self, request: Request) -> object:
        since_s, limit = float(request.number("since", default=0)), request.number("limit", default=FEW, most=MANY)
        user_name, job_name = (
            request.text(key, most_chars=MAX_JOB_ID_CHARS) if key in request.query else None for key in ("user", "name")
        )
        try:
            by = UsageBy(request.query.get("by", UsageBy.JOB.value))
        except ValueError:
            raise BadRequestError(f"by must be one of {', '.join(UsageBy)}") from None
        table = self._store().usage
        sizes = table.gpu_sizes(since_s=since_s)
        rows = table.usage(
            by, since_s=since_s, limit=limit, user_name=user_name, within=request.viewer.only, job_name=job_name
        )
        return {"usage": [SizedUsage.of(row, sizes) for row in rows], "seen_as": request.viewer.seen_as}


def _others(found: Sequence[JobRecord], record: JobRecord) -> Sequence[int]:
    """Other users who have a job of the record's id."""
    return sorted({one.job.uid for one in found if one.job.job_id == record.job.job_id} - {record.job.uid})


def _filter(request: Request) -> RecordFilter:
    """Raises ``BadRequestError``."""
    return RecordFilter(
        since_s=float(request.number("since", default=0)),
        until_s=float(request.number("until", default=0)) if "until" in request.query else None,
        user_name=_text(request, "user"),
        account=_text(request, "account"),
        job_name=_text(request, "name"),
        how=_how(request),
        job_id=_text(request, "job_id"),
    )


def _sought(request: Request) -> RecordSought:
    """Raises ``BadRequestError``."""
    sought = RecordSought(
        job_id=_text(request, "job_id"),
        job_name=_text(request, "name"),
        attempt=request.number("attempt", default=0) if "attempt" in request.query else None,
        uid=request.number("uid", default=0) if "uid" in request.query else None,
        user_name=request.viewer.only,
    )
    if sought.job_id is None and sought.job_name is None:
        raise BadRequestError("job_id or name is missing")
    return sought


def _text(request: Request, name: str) -> str | None:
    return request.text(name, most_chars=MAX_JOB_ID_CHARS) if request.query.get(name) else None


def _how(request: Request) -> JobEnd | None:
    asked = _text(request, "ended")
    try:
        return None if asked is None else JobEnd(asked)
    except ValueError:
        raise BadRequestError(
            f"ended must be one of {', '.join(end.value for end in JobEnd)}, not {asked!r:.40}"
        ) from None
