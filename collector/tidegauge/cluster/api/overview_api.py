"""Pages of the HTTP API for screens that refresh every second: bounded, and as cheap for fifty viewers as for one.

To list all jobs takes the coordinator 0.1 ms without new reports, but 18 ms after a second's reports at 10,000 ranks in
400 jobs, and 24 ms after one report of one of these jobs (the fleet of bench/fleet). So it lists them at most once a
second, however many viewers ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Generic, TypeVar

from tidegauge import __version__
from tidegauge.cluster.api.http_api import NotFoundError, Request, Route, json_route
from tidegauge.cluster.api.loop_api import status_for
from tidegauge.cluster.api.memory_api import JobAsked, rank_asked
from tidegauge.cluster.api.overview import (
    MAX_JOBS,
    JobLines,
    JobPage,
    NodePage,
    job_page,
    node_page,
    nodes_page,
    overview,
)
from tidegauge.cluster.api.route_access import seen_by
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.views import JobView, RankSummary
from tidegauge.core.wire import to_wire, wire_json
from tidegauge.http.access import EVERYBODY, Viewer
from tidegauge.http.server import Response

KEPT_S = 0.9
"""How long an answer is given again: a little less than the second after which a screen asks anew."""
REST = 30.0
"""How long an answer is kept beyond that, in times of the processor time that making it took."""
MAX_REST_S = 10.0
NODES_KEPT_S = 4.5
"""How long a page of nodes is given again: screens of nodes ask every five seconds."""
MAX_NODE_ID_CHARS = 256
LINE_COLUMNS = 32
"""Points of a sparkline at most."""

T = TypeVar("T")


class Kept(Generic[T]):
    """A cache of the value of ``make`` for ``kept_s`` seconds; one thread at a time makes it. It lives longer where
    making it is slow, so that screens never take more than a thirtieth of a core."""

    def __init__(
        self, make: Callable[[], T], *, kept_s: float, monotonic_s: Callable[[], float],
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self._make = make
        self._kept_s = kept_s
        self._processor_s = processor_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._made: tuple[float, T] | None = None
        """Until when it is kept, and what."""

    def __call__(self) -> T:
        with self._lock:
            if self._made is None or self._monotonic_s() > self._made[0]:
                began_s = self._processor_s()
                value = self._make()
                rest_s = min(REST * (self._processor_s() - began_s), MAX_REST_S)
                self._made = self._monotonic_s() + self._kept_s + rest_s, value
            return self._made[1]


def overview_routes(
    coordinator: Coordinator,
    jobs: Callable[[], tuple[JobView, ...]],
    status: Callable[[], LoopStatus],
    *,
    cluster: str,
    wall_s: Callable[[], float] = time.time,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> dict[str, Route]:
    """Routes by path. ``jobs`` returns all jobs, and is called again and again."""

    def memory_line(node_id: str, rank: RankSummary) -> tuple[int, ...]:
        return coordinator.memory_line(node_id, rank, columns=LINE_COLUMNS)

    def glance_of(viewer: Viewer) -> bytes:
        seen, lines = seen_by(viewer, jobs()), all_lines if viewer is EVERYBODY else JobLines(memory_line)
        lines.keep_only(seen)
        value = overview(
            seen, coordinator.nodes(), status_for(viewer, status()), lines.line,
            cluster=cluster, version=__version__, now_unix_s=wall_s(),
        )  # fmt: skip
        raw = to_wire(replace(value, jobs=()))
        assert isinstance(raw, dict), "an overview is an object"
        return wire_json({**raw, "jobs": [lines.wire(job) for job in seen[:MAX_JOBS]]})

    def glance(request: Request) -> Response:
        # One for all who see all; of those who see their own jobs each has another, of a few jobs.
        return Response(glances() if request.viewer.sees_all else glance_of(request.viewer))

    def page(request: Request) -> JobPage:
        asked = JobAsked.of(request)
        return job_page(
            _find(seen_by(request.viewer, jobs()), asked), memory_line, now_unix_s=wall_s(), rank=rank_asked(request)
        )

    def nodes_of(viewer: Viewer) -> bytes:
        every = jobs()
        value = nodes_page(coordinator.nodes(), seen_by(viewer, every), every, cluster=cluster, now_unix_s=wall_s())
        return wire_json(to_wire(value))

    def nodes(request: Request) -> Response:
        return Response(all_nodes() if request.viewer.sees_all else nodes_of(request.viewer))

    def node(request: Request) -> NodePage:
        node_id = request.text("node_id", most_chars=MAX_NODE_ID_CHARS)
        found = next((one for one in coordinator.nodes() if one.node_id == node_id), None)
        if found is None:
            raise NotFoundError("no such node; `tidegauge status` lists nodes")
        every = jobs()
        return node_page(found, seen_by(request.viewer, every), every, memory_line, now_unix_s=wall_s())

    all_nodes = Kept(lambda: nodes_of(EVERYBODY), kept_s=NODES_KEPT_S, monotonic_s=monotonic_s)
    all_lines = JobLines(memory_line)  # for one thread at a time, as Kept has it
    glances = Kept(lambda: glance_of(EVERYBODY), kept_s=KEPT_S, monotonic_s=monotonic_s)
    return {
        "/api/v1/overview": glance,
        "/api/v1/job": json_route(page),
        "/api/v1/node-overview": nodes,
        "/api/v1/node": json_route(node),
    }


def _find(jobs: tuple[JobView, ...], asked: JobAsked) -> JobView:
    """The first job that fits, which is the most alarming."""
    meant = asked.job_id, asked.attempt, asked.group
    for job in jobs:
        if (job.job_id, job.attempt, job.group) == meant and asked.uid in (None, job.ranks[0].uid):
            return job
    raise NotFoundError(
        f"job {asked.job_id!r}, attempt {asked.attempt}, is not watched; `tidegauge jobs` lists watched jobs"
    )
