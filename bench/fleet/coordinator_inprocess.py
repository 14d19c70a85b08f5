"""What a coordinator's own work costs, without Ray and on a simulated clock: a fleet's reports fed as fast as it goes.

Each simulated second: the reports that agents send at the pace that the coordinator asks for (as bytes, as
the reply), one turn of incidents and policy on a real SQLite file, one look after the
agents, one look of ``tidegauge top``; every two seconds a turn of escalation, every 15 a scrape of ``/metrics``, every
600 a garbage collection.
Processor time of these calls is counted, that of the simulated agents is not.
"""

from __future__ import annotations

import functools
import gc
import heapq
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

from fleet.measuring import private_bytes
from fleet.summaries import Fleet, hostname, node_id
from tidegauge.cluster.api.http_api import Request
from tidegauge.cluster.api.loop_api import loop_figures
from tidegauge.cluster.api.overview_api import KEPT_S, Kept, OverviewReads
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.report_endpoint import ReportEndpoint
from tidegauge.cluster.incident_loops.escalation_loop import EscalationLoop
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.agent_reconciler import AgentReconciler
from tidegauge.cluster.ray_service.coordinator_service import COLLECT_EVERY_S, keep_pauses_short
from tidegauge.cluster.store import open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.incidents.actions import Switches
from tidegauge.protocol.coding import decode, encode
from tidegauge.protocol.messages import ReportReply
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_scheduler_hooks.closed_loop import ClosedLoop
from tidegauge_scheduler_hooks.policy.files import PolicySource
from tidegauge_scheduler_hooks.tidegauge_run.adapter import LocalScheduler

T = TypeVar("T")

PERIOD_S = 1.0
"""The agents' setting."""
SCRAPE_EVERY_S, ESCALATION_EVERY_S = 15, 2
BEGAN_S = 1.8e9


class CoordinatorCost(NamedTuple):
    """Of one stretch of simulated time."""

    ranks: int
    nodes: int
    seconds: float
    reports: int
    cpu_s: dict[str, float]
    """Processor seconds by kind of work."""
    incidents_opened: int
    incidents_open: int
    private_bytes: tuple[int, ...]
    """After each simulated minute."""

    @property
    def core_percent(self) -> float:
        return 100 * sum(self.cpu_s.values()) / self.seconds

    @property
    def cpu_us_per_rank_s(self) -> float:
        """Microseconds of a core for one rank and second."""
        return 1e6 * sum(self.cpu_s.values()) / self.seconds / self.ranks

    @property
    def reports_per_s(self) -> float:
        return self.reports / self.seconds


class SimulatedEngine:
    """Lists the fleet's nodes as Ray would; has no agents to look after."""

    def __init__(self, nodes: range) -> None:
        self._nodes = tuple(
            EngineNode(node_id(node), hostname(node), f"10.0.{node >> 8}.{node & 255}") for node in nodes
        )

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        return self._nodes

    def ensure_agent(self, node_id: str) -> None: ...

    def hold_agent(self, node_id: str) -> None: ...

    def end_agent(self, node_id: str) -> None: ...


class Site:
    """A coordinator with all that surrounds it in its actor, and the fleet that reports to it."""

    def __init__(self, folder: Path, fleet: Fleet, workers: ThreadPoolExecutor) -> None:
        self.now_s = BEGAN_S
        self.fleet = fleet
        self.coordinator = Coordinator(wall_s=self.clock_s, monotonic_s=self.clock_s, incarnation="bench")
        self.endpoint = ReportEndpoint(self.coordinator, monotonic_s=self.clock_s)
        self.store = open_store(sqlite_url(folder))
        self.keeper = AgentReconciler(SimulatedEngine(fleet.nodes), self.coordinator, monotonic_s=self.clock_s)
        self.loop = ClosedLoop(
            cluster=self.coordinator, incidents=self.store.incidents, audit=self.store.audit,
            schedulers={"local": LocalScheduler(self.coordinator.orders)}, policy=PolicySource(None),
            switches=Switches, now_s=self.clock_s, monotonic_s=self.clock_s, wall_s=self.clock_s,
            submit=workers.submit,
        )  # fmt: skip
        self.escalation = EscalationLoop(
            self.coordinator, lambda: self.store.evidence, asks=EvidenceAsks(folder / "asks"), now_s=self.clock_s,
            submit=workers.submit,
        )  # fmt: skip
        jobs = Kept(self.coordinator.jobs, kept_s=KEPT_S, monotonic_s=self.clock_s)
        pages = OverviewReads(
            self.coordinator, jobs, self.loop.status, cluster="bench", wall_s=self.clock_s, monotonic_s=self.clock_s
        ).routes()
        self._overview = pages["/api/v1/overview"]
        self.cpu_s: defaultdict[str, float] = defaultdict(float)
        self.reports = 0
        shuffled = random.Random(0).sample(fleet.nodes, len(fleet.nodes))
        self._due: list[tuple[float, int]] = [
            (BEGAN_S + PERIOD_S * place / len(shuffled), node) for place, node in enumerate(shuffled)
        ]
        self._paced: set[int] = set()
        self._due_s = {node: due_s for due_s, node in self._due}

    def clock_s(self) -> float:
        return self.now_s

    def second(self) -> None:
        """One simulated second."""
        for node in self.fleet.advance(self.now_s):
            self._plan(node, self.now_s + (node % 16) / 16)
        end_s = self.now_s + 1.0
        while self._due and self._due[0][0] < end_s:
            due_s, node = heapq.heappop(self._due)
            if self._due_s[node] == due_s:
                self.now_s = max(self.now_s, due_s)
                self._report(node)
        self.now_s = end_s
        second = int(end_s - BEGAN_S)
        self._counted("agents looked after", self.keeper.tick)
        self._counted("incidents and policy", self.loop.tick)
        self._counted("tidegauge top", lambda: self._overview(Request({}, None)))
        if second % ESCALATION_EVERY_S == 0:
            self._counted("escalation", self.escalation.turn)
        if second % SCRAPE_EVERY_S == 0:
            self._counted("/metrics", self._scrape)
        if second % COLLECT_EVERY_S == 0:
            self._counted("garbage collection", gc.collect)

    def _report(self, node: int) -> None:
        data = encode(self.fleet.summary(node, self.now_s))
        answer = self._counted("reports", functools.partial(self.endpoint.answer, node_id(node), data))
        reply = decode(ReportReply, answer).message
        self.reports += 1
        talks = self.fleet.take(node, reply.orders, reply.evidence_kept, self.now_s)
        every_s = reply.report_every_s
        if every_s > PERIOD_S and node not in self._paced:
            every_s *= random.random()  # as agents do, so that those that began together do not stay together
            self._paced.add(node)
        self._plan(node, self.now_s + (PERIOD_S if talks else max(PERIOD_S, every_s)), anew=True)

    def _plan(self, node: int, due_s: float, *, anew: bool = False) -> None:
        if anew or due_s < self._due_s[node]:
            self._due_s[node] = due_s
            heapq.heappush(self._due, (due_s, node))

    def _scrape(self) -> None:
        jobs = self.coordinator.jobs()
        figures = loop_figures(
            lambda: self.store, self.loop.status(), slurm={}, jobs=jobs, nodes=self.coordinator.nodes(),
            now_unix_s=self.now_s,
        )  # fmt: skip
        job_metrics(jobs, cluster="bench", now_unix_s=self.now_s, loop=figures)

    def _counted(self, what: str, work: Callable[[], T]) -> T:
        began_s = time.thread_time()
        found = work()
        self.cpu_s[what] += time.thread_time() - began_s
        return found


@contextmanager
def opened(fleet: Fleet) -> Iterator[Site]:
    """A site with a database of its own; everything is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(8) as workers:
        site = Site(Path(folder), fleet, workers)
        try:
            yield site
        finally:
            site.now_s += 3600.0  # nobody is waited for any more
            workers.shutdown(wait=False, cancel_futures=True)
            site.store.close()


def cost(
    ranks: int, seconds: int, *, warm_up_s: int = 20, incidents_per_minute: float | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> CoordinatorCost:  # fmt: skip
    """``ranks`` ranks, eight to a node, for ``seconds`` after the warm-up. Incidents: 50 a minute at 10,000 ranks, in
    proportion on smaller fleets."""
    per_minute = 50.0 * ranks / 10_000 if incidents_per_minute is None else incidents_per_minute
    nodes = -(-ranks // 8)
    fleet = Fleet(nodes, ranks_per_node=min(ranks, 8), incidents_per_minute=per_minute, now_s=BEGAN_S)
    keep_pauses_short()  # as the actor does
    with opened(fleet) as site:
        for _ in range(warm_up_s):
            site.second()
        site.cpu_s.clear()
        begun, reports, kept = fleet.begun, site.reports, []
        for second in range(1, seconds + 1):
            site.second()
            if second % 60 == 0:
                kept.append(private_bytes())
                progress(f"{second} of {seconds} s, {site.reports} reports, {kept[-1] / 2**20:.1f} MiB")
        return CoordinatorCost(
            fleet.ranks, nodes, float(seconds), site.reports - reports, dict(site.cpu_s), fleet.begun - begun,
            site.loop.status().incidents_open, tuple(kept),
        )  # fmt: skip


def cost_per_rank(ranks: int, seconds: float) -> CoordinatorCost:
    """For the curve: see ``cost``."""
    return cost(ranks, int(seconds))
