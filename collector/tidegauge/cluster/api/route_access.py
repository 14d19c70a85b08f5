"""Access to the pages of the coordinator's HTTP API: which roles may read each page, and which jobs a viewer may see.

Without authentication everybody may read everything. A page that is not in the table is for admins only, and a test
fails. The owner of a job is known from kernel and scheduler, never from a claim of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

from tidegauge.cluster.api.loop_reads import IncidentReads, JobReads
from tidegauge.core.ids import JobKey
from tidegauge.core.views import JobView
from tidegauge.http.access import Owned, Viewer


class Access(Enum):
    """The viewers who may read a page, and send the form on it."""

    OPEN = "open"
    """Whoever reaches the port: it says nothing of anybody."""
    SIGNED_IN = "signed in"
    """Whoever has a name. It holds nothing that belongs to one user."""
    OWN = "own"
    """Any viewer with a name, limited to their own things: lists are shorter, and things of others do not exist (404).
    The page itself limits its content, by ``Request.viewer``."""
    METRICS = "metrics"
    """``metrics_readers`` and ``api_admins``."""
    ADMIN = "admin"
    """``api_admins``."""


ROUTE_ACCESS: Mapping[str, Access] = {
    "/healthz": Access.OPEN,
    "/ui/site.css": Access.OPEN,
    "/ui/site.js": Access.OPEN,
    "/": Access.OWN,
    "/jobs": Access.OWN,
    "/job": Access.OWN,
    "/incidents": Access.OWN,
    "/nodes": Access.OWN,
    "/history": Access.OWN,
    "/policy": Access.OWN,
    "/profile": Access.OWN,
    "/compare": Access.OWN,
    "/login": Access.OPEN,
    "/logout": Access.OPEN,
    "/api/v1/me": Access.SIGNED_IN,
    "/runbooks": Access.SIGNED_IN,
    "/api/v1/openapi.json": Access.SIGNED_IN,
    "/api/v1/status": Access.SIGNED_IN,
    "/api/v1/nodes": Access.SIGNED_IN,
    "/api/v1/policy": Access.OWN,
    "/api/v1/jobs": Access.OWN,
    "/api/v1/job": Access.OWN,
    "/api/v1/overview": Access.OWN,
    "/api/v1/node-overview": Access.OWN,
    "/api/v1/node": Access.OWN,
    "/api/v1/events": Access.OWN,
    "/api/v1/memory": Access.OWN,
    "/api/v1/heat-map": Access.OWN,
    "/api/v1/incidents": Access.OWN,
    "/api/v1/incident": Access.OWN,
    "/api/v1/incident-marks": Access.OWN,
    "/api/v1/incident-changes": Access.OWN,
    "/api/v1/decisions": Access.OWN,
    "/api/v1/ended-jobs": Access.OWN,
    "/api/v1/usage": Access.OWN,
    "/api/v1/job-record": Access.OWN,
    "/api/v1/evidence": Access.OWN,
    "/api/v1/profiled-jobs": Access.OWN,
    "/api/v1/profiles": Access.OWN,
    "/api/v1/profile": Access.OWN,
    "/api/v1/grades": Access.OWN,
    "/grade": Access.OWN,
    "/api/v1/acts": Access.OWN,
    "/act": Access.OWN,
    "/report": Access.OWN,
    "/sd": Access.METRICS,
    "/metrics": Access.METRICS,
}


def may_read(viewer: Viewer, access: Access) -> bool:
    """Whether this viewer, who is authenticated, may read a page. An ``OWN`` page limits its content itself."""
    if access is Access.METRICS:
        return viewer.reads_metrics
    return viewer.is_admin if access is Access.ADMIN else True


Owns = Callable[[Viewer, JobKey], bool]
"""Whether what is known of a job is a viewer's to see."""


def may_see(viewer: Viewer, job: JobView) -> bool:
    """Whether the viewer owns every rank: a rank that only claims to belong to a job must not open it to its owner."""
    if viewer.sees_all:
        return True
    # A node that does not know the name of the job's uid tells the uid instead.
    return viewer.sees(job.user_name, job.job_id) and all(
        viewer.sees(rank.user_name, job.job_id) or rank.user_name == str(rank.uid) for rank in job.ranks
    )


def seen_by(viewer: Viewer, jobs: Sequence[JobView]) -> tuple[JobView, ...]:
    """The jobs that the viewer may see, in the same order."""
    return tuple(jobs) if viewer.sees_all else tuple(job for job in jobs if may_see(viewer, job))


def ownership(
    jobs: Callable[[], Sequence[JobView]],
    incidents: Callable[[], IncidentReads],
    records: Callable[[], JobReads] | None = None,
) -> Owns:
    """Ownership of watched jobs, of jobs with an incident, and with ``records`` of all that ended. The result raises
    ``AuditError``."""

    def owns(viewer: Viewer, key: JobKey) -> bool:
        if viewer.sees_all:
            return True
        watched = next((job for job in jobs() if job.ranks and job.key == key), None)
        if watched is not None and may_see(viewer, watched):
            return True
        # Asked of a watched job of somebody else too: a refusal that came sooner would tell that there is one.
        return viewer.only is not None and was_of(viewer, viewer.only, key) and watched is None

    def was_of(viewer: Viewer, whose: Owned, key: JobKey) -> bool:
        if incidents().has_owner(key, whose):
            return True
        record = None if records is None else records().latest([key.whole]).get(key.whole)
        return record is not None and viewer.sees(record.user_name, key.job_id)

    return owns
