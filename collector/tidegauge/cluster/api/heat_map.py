"""The memory of all ranks of a job over one time axis: rows for a heat map. Bounded, and made at most every few seconds
for each job, however many viewers ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from threading import Lock
from typing import NamedTuple

from tidegauge.cluster.api.http_api import Request, Route, json_route
from tidegauge.cluster.api.memory_api import JobAsked
from tidegauge.cluster.api.overview_api import Kept, OverviewReads
from tidegauge.cluster.coordinator.grouping import look_first
from tidegauge.core.ids import JobKey
from tidegauge.core.memory_history import MemoryHistory
from tidegauge.core.verdicts import LeakState, Severity
from tidegauge.core.views import JobView, RankSummary
from tidegauge.http.access import EVERYBODY

MAX_ROWS = 2048
"""A job with more ranks has a row for each of its nodes; of more nodes, those to look at first."""
COLUMNS, MAX_COLUMNS = 96, 240
KEPT_S = 5.0
MAX_JOBS_KEPT = 16

HistoryOf = Callable[[str, RankSummary], MemoryHistory]


class HeatRow(NamedTuple):
    """One rank. ``percent``: the highest share of its limit that it held in each stretch of time; ``None`` where it was
    not seen."""

    rank: int
    hostname: str
    gpu: int | None
    state: LeakState
    severity: Severity | None
    stale: bool
    """Its node does not report: the state is the last that was heard."""
    percent: Sequence[int | None]


class HeatMap(NamedTuple):
    """Rows by number of the rank."""

    from_unix_s: float
    until_unix_s: float
    by_node: bool
    """Each row is the rank to look at first of one node: the job has too many for a row each."""
    rows: Sequence[HeatRow]
    left_out: int
    """Ranks, or nodes, without a row: no limit is known, or there are too many."""


class HeatMaps:
    """Heat maps of jobs. Thread-safe."""

    def __init__(
        self, overviews: OverviewReads, history_of: HistoryOf, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._overviews = overviews
        self._history_of = history_of
        self._monotonic_s = monotonic_s
        self._lock = Lock()
        self._kept: OrderedDict[tuple[JobKey, int], Kept[HeatMap]] = OrderedDict()

    def routes(self) -> dict[str, Route]:
        """Routes by path."""
        return {"/api/v1/heat-map": json_route(self._of_job)}

    def _of_job(self, request: Request) -> HeatMap:
        columns = request.number("columns", default=COLUMNS, most=MAX_COLUMNS) or COLUMNS
        key = self._overviews.job_view(JobAsked.of(request), request.viewer).key
        return self._kept_of(key, columns)()

    def _kept_of(self, job: JobKey, columns: int) -> Kept[HeatMap]:
        def make() -> HeatMap:
            view = self._overviews.job_view(JobAsked(*job), EVERYBODY)
            return heat_map(view, self._history_of, columns=columns)

        with self._lock:
            kept = self._kept.pop((job, columns), None)
            self._kept[job, columns] = kept or Kept(make, kept_s=KEPT_S, monotonic_s=self._monotonic_s)
            while len(self._kept) > MAX_JOBS_KEPT:
                self._kept.popitem(last=False)
            return self._kept[job, columns]


def heat_map(job: JobView, history_of: HistoryOf, *, columns: int, most: int = MAX_ROWS) -> HeatMap:
    """The heat map of a job that has ranks."""
    places = sorted(range(len(job.ranks)), key=lambda place: look_first(job.ranks[place]))
    every = len(places)
    by_node = every > most
    if by_node:
        first_of: dict[str, int] = {}
        for place in places:
            first_of.setdefault(job.rank_hostnames[place], place)
        places, every = list(first_of.values()), len(first_of)
    shown = sorted(
        [place for place in places[:most] if job.ranks[place].limit_bytes],
        key=lambda place: job.ranks[place].identity.rank,
    )
    histories = [history_of(job.rank_nodes[place], job.ranks[place]) for place in shown]
    spans = [history.span_unix_s for history in histories if history.span_unix_s[1]]
    from_s, until_s = min((begin for begin, _ in spans), default=0.0), max((end for _, end in spans), default=0.0)
    rows = [
        _row(job, place, history.used_between(from_s, until_s, columns)) for place, history in zip(shown, histories)
    ]
    return HeatMap(from_s, until_s, by_node, rows, every - len(rows))


def _row(job: JobView, place: int, used: Sequence[int | None]) -> HeatRow:
    rank = job.ranks[place]
    limit = rank.limit_bytes or 1
    return HeatRow(
        rank=int(rank.identity.rank),
        hostname=job.rank_hostnames[place],
        gpu=rank.gpu,
        state=rank.verdict.state,
        severity=rank.verdict.severity,
        stale=rank.identity.rank in job.stale,
        percent=[None if count is None else round(100 * count / limit) for count in used],
    )
