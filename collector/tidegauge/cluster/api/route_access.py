"""Who may read which page of the coordinator's HTTP API, and send the form on it: one decision for each, in one table.

Without authentication everybody may read everything. A page that is not here is for admins alone, and a test fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from tidegauge.web.access import Viewer


class Access(Enum):
    """Who may read a page."""

    OPEN = "open"
    """Whoever reaches the port: it says nothing of anybody."""
    SIGNED_IN = "signed in"
    """Whoever has a name. It holds nothing that belongs to one user."""
    OWN = "own"
    """Whoever has a name, but of what belongs to somebody only their own: lists are shorter, and what is somebody
    else's does not exist (404). The page itself sees to that, by ``Request.viewer``."""
    METRICS = "metrics"
    """``metrics_readers`` and ``api_admins``."""
    ADMIN = "admin"
    """``api_admins``."""


ROUTE_ACCESS: Mapping[str, Access] = {
    "/healthz": Access.OPEN,
    "/runbooks": Access.SIGNED_IN,
    "/api/v1/openapi.json": Access.SIGNED_IN,
    "/api/v1/status": Access.SIGNED_IN,
    "/api/v1/nodes": Access.SIGNED_IN,
    "/api/v1/policy": Access.OWN,
    "/api/v1/jobs": Access.OWN,
    "/api/v1/job": Access.OWN,
    "/api/v1/overview": Access.OWN,
    "/api/v1/events": Access.OWN,
    "/api/v1/memory": Access.OWN,
    "/api/v1/incidents": Access.OWN,
    "/api/v1/incident": Access.OWN,
    "/api/v1/incident-marks": Access.OWN,
    "/api/v1/incident-changes": Access.OWN,
    "/api/v1/decisions": Access.OWN,
    "/api/v1/evidence": Access.OWN,
    "/api/v1/grades": Access.OWN,
    "/grade": Access.OWN,
    "/report": Access.OWN,
    "/sd": Access.METRICS,
    "/metrics": Access.METRICS,
}


def may_read(viewer: Viewer, access: Access) -> bool:
    """Whether this viewer, who was let in, may have a page. What of it is another matter for ``OWN``."""
    if access is Access.METRICS:
        return viewer.reads_metrics
    return viewer.sees_all if access is Access.ADMIN else True
