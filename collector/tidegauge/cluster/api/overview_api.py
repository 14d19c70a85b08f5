"""Pages of the HTTP API for screens that refresh every second: bounded, and as cheap for fifty viewers as for one.

To list all jobs takes the coordinator 0.1 ms without new reports, but 18 ms after a second's reports at 10,000 ranks in
400 jobs, and 24 ms after one report of one of these jobs (the fleet of bench/fleet). So it lists them at most once a
second, however many viewers ask.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Generic, NamedTuple, TypeVar

from tidegauge import __version__
from tidegauge.cluster.api.http_api import NotFoundError, Request, Route, json_route
from tidegauge.cluster.api.loop_api import status_for
from tidegauge.cluster.api.memory_api import JobAsked, rank_asked
from tidegauge.cluster.api.overview import (
    MAX_JOBS,
    JobLines,
    JobPage,
    NodePage,
    Overview,
    job_page,
    node_page,
    nodes_page,
    overview,
)
from tidegauge.cluster.api.route_access import seen_by
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.views import JobView, RankSummary
from tidegauge.core.wire import Wire, to_wire, wire_json
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


class KeptEach(Generic[T]):
    """A cache of values by key, each as ``Kept`` keeps one: the ``most`` that were asked for last."""

    def __init__(
        self, *, most: int, kept_s: float, monotonic_s: Callable[[], float],
        processor_s: Callable[[], float] = time.thread_time,
    ) -> None:  # fmt: skip
        self._most = most
        self._kept_s = kept_s
        self._monotonic_s = monotonic_s
        self._processor_s = processor_s
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Kept[T]] = {}
        """The one that was asked for last is the last."""

    def __call__(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of ``make``, or that of an earlier call with an equal ``key``."""
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None:
                kept = Kept(make, kept_s=self._kept_s, monotonic_s=self._monotonic_s, processor_s=self._processor_s)
            self._kept[key] = kept
            if len(self._kept) > self._most:
                del self._kept[next(iter(self._kept))]
        return kept()


class OverviewReads:
    """Jobs in one line each, as a viewer may see them, for screens. Thread-safe."""

    def __init__(
        self,
        coordinator: Coordinator,
        jobs: Callable[[], tuple[JobView, ...]],
        status: Callable[[], LoopStatus],
        *,
        cluster: str,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``jobs`` returns all jobs, and is called again and again."""
        self._coordinator = coordinator
        self._jobs = jobs
        self._status = status
        self._cluster = cluster
        self._wall_s = wall_s
        self._all_lines = JobLines(self._memory_line)  # for one thread at a time, as Kept has it
        self._overviews = Kept(lambda: self._overview(EVERYBODY), kept_s=KEPT_S, monotonic_s=monotonic_s)
        self._all_nodes = Kept(lambda: self._nodes_of(EVERYBODY), kept_s=NODES_KEPT_S, monotonic_s=monotonic_s)
        self._answers = Kept(lambda: self._answer(self._overviews()), kept_s=KEPT_S, monotonic_s=monotonic_s)

    def overview(self, viewer: Viewer) -> Overview:
        # One for all who see all; of those who see their own jobs each has another, of a few jobs.
        return self._overviews().overview if viewer.sees_all else self._overview(viewer).overview

    def job_page(self, job: JobAsked, viewer: Viewer, *, rank: int | None = None) -> JobPage:
        """Raises ``NotFoundError``."""
        view = self.job_view(job, viewer)
        return job_page(view, self._memory_line, now_unix_s=self._wall_s(), rank=rank)

    def ranks_page(self, view: JobView, *, most: int) -> JobPage:
        """The same without sparklines and with at most ``most`` ranks: of ten thousand those take most of the time."""
        return job_page(view, _no_line, now_unix_s=self._wall_s(), most=most)

    def job_view(self, job: JobAsked, viewer: Viewer) -> JobView:
        """Raises ``NotFoundError``."""
        return _find(seen_by(viewer, self._jobs()), job)

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        return {
            "/api/v1/overview": lambda request: Response(self._told(request.viewer)),
            "/api/v1/job": json_route(
                lambda request: self.job_page(JobAsked.of(request), request.viewer, rank=rank_asked(request))
            ),
            "/api/v1/node-overview": self._nodes,
            "/api/v1/node": json_route(self._node),
        }

    def _nodes(self, request: Request) -> Response:
        return Response(self._all_nodes() if request.viewer.sees_all else self._nodes_of(request.viewer))

    def _nodes_of(self, viewer: Viewer) -> bytes:
        every = self._jobs()
        value = nodes_page(
            self._coordinator.nodes(), seen_by(viewer, every), every, cluster=self._cluster, now_unix_s=self._wall_s()
        )
        return wire_json(to_wire(value))

    def _node(self, request: Request) -> NodePage:
        node_id = request.text("node_id", most_chars=MAX_NODE_ID_CHARS)
        found = next((one for one in self._coordinator.nodes() if one.node_id == node_id), None)
        if found is None:
            raise NotFoundError("no such node; `tidegauge status` lists nodes")
        every = self._jobs()
        return node_page(found, seen_by(request.viewer, every), every, self._memory_line, now_unix_s=self._wall_s())

    def _told(self, viewer: Viewer) -> bytes:
        return self._answers() if viewer.sees_all else self._answer(self._overview(viewer))

    def _overview(self, viewer: Viewer) -> _WiredOverview:
        seen = seen_by(viewer, self._jobs())
        lines = self._all_lines if viewer is EVERYBODY else JobLines(self._memory_line)
        lines.keep_only(seen)
        value = overview(
            seen, self._coordinator.nodes(), status_for(viewer, self._status()), lines.line,
            cluster=self._cluster, version=__version__, now_unix_s=self._wall_s(),
        )  # fmt: skip
        return _WiredOverview(value, [lines.wire(job) for job in seen[:MAX_JOBS]])

    def _answer(self, made: _WiredOverview) -> bytes:
        raw = to_wire(replace(made.overview, jobs=()))
        assert isinstance(raw, dict), "an overview is an object"
        return wire_json({**raw, "jobs": made.jobs})

    def _memory_line(self, node_id: str, rank: RankSummary) -> tuple[int, ...]:
        return self._coordinator.memory_line(node_id, rank, columns=LINE_COLUMNS)


def _no_line(node_id: str, rank: RankSummary) -> tuple[int, ...]:  # noqa: ARG001 - as MemoryLine
    return ()


class _WiredOverview(NamedTuple):
    overview: Overview
    jobs: list[Wire]
    """Its jobs, ready for JSON."""


def _find(jobs: tuple[JobView, ...], asked: JobAsked) -> JobView:
    """The first job that fits, which is the most alarming; of one without a first group (replicas) any group fits."""
    meant = asked.job_id, asked.attempt
    same = [job for job in jobs if (job.job_id, job.attempt) == meant and asked.uid in (None, job.ranks[0].uid)]
    found = [job for job in same if job.group == asked.group] or ([] if asked.group else same)
    if not found:
        raise NotFoundError(
            f"job {asked.job_id!r}, attempt {asked.attempt}, is not watched; `tidegauge jobs` lists watched jobs"
        )
    return found[0]
