"""The HTTP API's page on how ranks' memory went: what forecast plots and charts are drawn from. Read only, bounded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidegauge.cluster.api.http_api import Request, Route, json_route
from tidegauge.cluster.api.ownership import may_see
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.web.access import Viewer

MAX_RANKS = 64
"""Ranks in one answer, the ones to look at first: about 1 MB."""
MAX_JOB_ID_CHARS = 1024
"""As a ring may claim."""


class JobAsked(NamedTuple):
    """Which job a request is about; ``uid=None``: whoever claims this id."""

    job_id: str
    attempt: int
    uid: int | None
    group: str = ""
    """Which of its groups of ranks, as ``JobKey.group``."""

    @classmethod
    def of(cls, request: Request) -> JobAsked:
        """Out of ``job_id``, ``attempt``, ``uid`` and ``group``. Raises ``BadRequestError``."""
        return cls(
            request.text("job_id", most_chars=MAX_JOB_ID_CHARS),
            request.number("attempt", default=0),
            request.number("uid", default=0) if "uid" in request.query else None,
            request.text("group", most_chars=MAX_JOB_ID_CHARS) if request.query.get("group") else "",
        )


def rank_asked(request: Request) -> int | None:
    """The one rank that a request is about, if it is about one. Raises ``BadRequestError``."""
    return request.number("rank", default=0) if "rank" in request.query else None


class RankMemory(NamedTuple):
    """One rank's history, oldest point first."""

    rank: int
    points: tuple[MemoryPoint, ...]


def memory_routes(coordinator: Coordinator) -> dict[str, Route]:
    """Pages by path."""

    def memory(request: Request) -> object:
        job = JobAsked.of(request)
        whose = job if request.viewer.sees_all else _theirs(coordinator, job, request.viewer)
        found = {} if whose is None else _memory_of(coordinator, whose, rank_asked(request))
        return {**job._asdict(), "ranks": [RankMemory(number, points) for number, points in found.items()]}

    return {"/api/v1/memory": json_route(memory)}


def _memory_of(coordinator: Coordinator, job: JobAsked, rank: int | None) -> Mapping[int, tuple[MemoryPoint, ...]]:
    return coordinator.memory(job.job_id, job.attempt, job.uid, group=job.group, rank=rank, most=MAX_RANKS)


def _theirs(coordinator: Coordinator, asked: JobAsked, viewer: Viewer) -> JobAsked | None:
    """The job with its owner's uid, if it is the viewer's. Memory is forgotten with the job, so one that is not watched
    has none."""
    for job in coordinator.jobs():
        uid = job.ranks[0].uid if job.ranks else None
        if (job.job_id, job.attempt) == asked[:2] and asked.uid in (None, uid) and may_see(viewer, job):
            return asked._replace(uid=uid)
    return None
