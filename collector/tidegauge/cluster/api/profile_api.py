"""Pages of the HTTP API on memory profiles of ranks, and the form that asks for one now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request, Route, UnavailableError
from tidegauge.cluster.api.loop_api import store_route
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.api.memory_api import JobAsked
from tidegauge.cluster.api.route_access import Owns
from tidegauge.cluster.views import AskedProfile, ProfileProblem
from tidegauge.core.ids import JobKey
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.request import ranks_of
from tidegauge.core.text import one_line
from tidegauge.http.access import Viewer

log = logging.getLogger(__name__)

MAX_PROFILES = 256
"""In one list: all that are kept of a job."""
MAX_JOBS = 50
"""Jobs in the list of those with profiles."""
MAX_JOBS_READ = 1000
MAX_PROBLEMS = 100
MAX_RANKS_CHARS = 1000
"""Of the field ``ranks``."""
NO_SUCH_JOB = "no such job"


class ProfiledJob(NamedTuple):
    """A job with profiles."""

    job: JobKey
    at_unix_s: float
    """When its newest one was written down."""


class ProfileAsks(Protocol):
    """``incident_loops.profile_loop.ProfileLoop``."""

    def ask(self, job: JobKey, ranks: Collection[int], /) -> Sequence[AskedProfile]:
        """Raises ``LookupError``."""

    def asked(self, job: JobKey, /) -> Sequence[AskedProfile]: ...

    def problems(self) -> Sequence[ProfileProblem]: ...


class ProfilePages:
    """Routes and forms by path. ``store`` and ``owns`` raise ``AuditError`` while the database is not open."""

    def __init__(self, store: Callable[[], LoopStore], asks: ProfileAsks, owns: Owns) -> None:
        self._store = store
        self._asks = asks
        self._owns = owns

    def routes(self) -> dict[str, Route]:
        return {
            "/api/v1/profiled-jobs": store_route(self._jobs),
            "/api/v1/profiles": store_route(self._of_job),
            "/api/v1/profile": store_route(self._of_rank),
        }

    def forms(self) -> dict[str, Route]:
        return {"/api/v1/profiles": store_route(self._ask)}

    def profiled(self, viewer: Viewer, *, limit: int = MAX_JOBS) -> Sequence[ProfiledJob]:
        """Jobs with profiles that the viewer may see, the newest first."""
        found: list[ProfiledJob] = []
        for job, at_unix_s in self._store().profiles.newest(limit=MAX_JOBS_READ):
            if len(found) < limit and self._owns(viewer, job):
                found.append(ProfiledJob(job, at_unix_s))
        return found

    def of_job(self, request: Request) -> tuple[JobKey, Sequence[RankProfile]]:
        """The job of a request and its profiles, as they are kept. Raises ``NotFoundError`` for a job of somebody else,
        as for one that is not known."""
        job = self._job(request)
        return job, self._store().profiles.of_job(job, limit=MAX_PROFILES)

    def _jobs(self, request: Request) -> object:
        limit = request.number("limit", default=MAX_JOBS, most=MAX_JOBS)
        found = self.profiled(request.viewer, limit=limit)
        problems = [one for one in self._asks.problems() if self._owns(request.viewer, one.job)]
        return {"jobs": found, "problems": problems[:MAX_PROBLEMS], "seen_as": request.viewer.seen_as}

    def _of_job(self, request: Request) -> object:
        job, found = self.of_job(request)
        return {"profiles": [replace(one, packed="") for one in found], "asked": self._asks.asked(job)}

    def _of_rank(self, request: Request) -> object:
        if "rank" not in request.query:
            raise BadRequestError("rank is missing")
        job, rank = self._job(request), request.number("rank", default=0)
        found = self._store().profiles.of_rank(job, rank)
        if found is None:
            raise NotFoundError(f"rank {rank} has no memory profile")
        try:
            return {"about": replace(found, packed=""), "profile": found.profile()}
        except ValueError as error:
            raise UnavailableError(f"the profile of rank {rank} cannot be read: {error}") from error

    def _ask(self, request: Request) -> object:
        request.only("job_id", "attempt", "uid", "group", "ranks")
        job, viewer = self._job(request), request.viewer
        viewer.check_may_act(viewer.name if self._owns(viewer.as_owner, job) else None, job.job_id)
        try:
            asked = self._asks.ask(job, _ranks(request))
        except LookupError as error:
            raise NotFoundError(str(error.args[0])) from error
        log.info("%s asked for memory profiles of job %s", request.viewer.name, one_line(job.job_id))
        return {"asked": asked}

    def _job(self, request: Request) -> JobKey:
        """The job of a request. Raises ``NotFoundError`` for one of somebody else, as for one that is not known."""
        asked = JobAsked.of(request)
        if asked.uid is None:
            raise BadRequestError("uid is missing: the job's owner")
        job = JobKey(asked.job_id, asked.attempt, asked.uid, asked.group)
        if not self._owns(request.viewer, job):
            raise NotFoundError(NO_SUCH_JOB)
        return job


def _ranks(request: Request) -> Sequence[int]:
    """``0,3``: these ranks; without them all."""
    if not request.query.get("ranks"):
        return ()
    ranks = ranks_of(request.text("ranks", most_chars=MAX_RANKS_CHARS))
    if ranks is None:
        raise BadRequestError("ranks must be numbers with commas between them, such as 0,3")
    return ranks
