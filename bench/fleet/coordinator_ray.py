"""The coordinator as it runs: its real actor in a Ray of this machine, called by a few processes for all agents.

Real: the actor's class with all its threads (API, incidents and policy on SQLite, escalation), Ray's calls, one client
that asks for ``tidegauge top``'s page every second and one that scrapes every 15 s over HTTP. Simulated: the agents
(``fleet.summaries``, paced as the replies ask), and the engine's list of nodes, which here has one node in truth.
"""

from __future__ import annotations

import heapq
import logging
import math
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fleet.measuring import cpu_s, private_bytes
from fleet.summaries import Fleet, shards
from tidegauge.protocol.coding import decode, encode
from tidegauge.protocol.messages import ReportReply

BENCH = Path(__file__).resolve().parents[1]
PERIOD_S, SCRAPE_EVERY_S, LOOK_EVERY_S = 1.0, 15.0, 1.0
GENERATORS = 2
MEMORY_EVERY_S = 10.0


class RayFigures(NamedTuple):
    """What a run measured."""

    ranks: int
    seconds: float
    reports_per_s: float
    core_percent: float
    """Of the coordinator's process, all its threads."""
    answer_p50_ms: float
    answer_p99_ms: float
    top_worst_ms: float
    scrape_worst_ms: float
    incidents_begun: int
    incidents_open: int
    private_bytes: tuple[int, ...]
    """Every ten seconds."""


class Agents:
    """The agents of some nodes, in one process (an actor)."""

    def __init__(self, first: int, nodes: int, ranks_per_node: int, incidents_per_minute: float) -> None:
        self._fleet = Fleet(
            nodes, ranks_per_node=ranks_per_node, incidents_per_minute=incidents_per_minute, now_s=time.time(),
            first=first,
        )  # fmt: skip
        begins_s = time.time()
        self._due_s = {node: begins_s + 5 * random.random() for node in self._fleet.nodes}
        self._due = [(due_s, node) for node, due_s in self._due_s.items()]
        heapq.heapify(self._due)
        self._every_s: dict[int, float] = {}

    def run(self, coordinator: Any, seconds: float) -> tuple[list[float], int]:
        """Report for so long; returns what each answer took, in seconds, and how many incidents were begun."""
        import ray

        under_way: dict[Any, tuple[int, float]] = {}
        took_s: list[float] = []
        begun, ends_s, next_s = self._fleet.begun, time.time() + seconds, 0.0
        while (now_s := time.time()) < ends_s:
            if now_s >= next_s:
                next_s = now_s + 1.0
                for node in self._fleet.advance(now_s):
                    self._plan(node, now_s + random.random())
            busy = {node for node, _ in under_way.values()}
            while self._due and self._due[0][0] <= now_s:
                due_s, node = heapq.heappop(self._due)
                if self._due_s[node] == due_s:
                    if node in busy:
                        self._plan(node, now_s + PERIOD_S, anew=True)
                        continue
                    summary = self._fleet.summary(node, now_s)
                    under_way[coordinator.report.remote(summary.node_id, encode(summary))] = node, time.perf_counter()
            wait_s = max(0.001, min(self._due[0][0] if self._due else ends_s, next_s) - time.time())
            if not under_way:
                time.sleep(wait_s)
                continue
            answered, _ = ray.wait(list(under_way), num_returns=1, timeout=wait_s)
            at_s = time.perf_counter()
            for ref in answered:
                node, sent_s = under_way.pop(ref)
                took_s.append(at_s - sent_s)
                self._take(node, decode(ReportReply, ray.get(ref)).message)
        return took_s, self._fleet.begun - begun

    def _take(self, node: int, reply: ReportReply) -> None:
        now_s = time.time()
        talks = self._fleet.take(node, reply.orders, reply.evidence_kept, now_s)
        every_s = max(PERIOD_S, reply.report_every_s)
        first = every_s > self._every_s.get(node, 0.0)
        self._every_s[node] = every_s
        wait_s = PERIOD_S if talks else every_s * (random.random() if first else 1.0)
        self._plan(node, now_s + wait_s, anew=True)

    def _plan(self, node: int, due_s: float, *, anew: bool = False) -> None:
        if anew or due_s < self._due_s[node]:
            self._due_s[node] = due_s
            heapq.heappush(self._due, (due_s, node))


@contextmanager
def coordinator_in_ray(nodes: int) -> Iterator[Any]:
    """The real actor's handle, in a Ray that is ended afterwards with all its files."""
    from tidegauge.cluster.ray_service.node_command import FEW_HEAPS, QUIET, SLOW_TIMERS, SURVIVE

    os.environ.update({**QUIET, **SLOW_TIMERS, **SURVIVE, **FEW_HEAPS, "RAY_AUTH_MODE": "disabled"})
    os.environ["PYTHONPATH"] = os.pathsep.join([str(BENCH), *filter(None, [os.environ.get("PYTHONPATH")])])
    import ray

    from tidegauge.cluster.ray_service.node_command import NODE_SPEC_VARIABLE
    from tidegauge.cluster.service_record import NodeSpec, prepare_state_dir, write_spec
    from tidegauge.settings import Settings

    with tempfile.TemporaryDirectory(prefix="tgb-", ignore_cleanup_errors=True) as folder:
        files = prepare_state_dir(Path(folder, "state"))
        settings = Settings(state_dir=files.root, api_port=0, metrics_port=0, slurm="off", kubernetes="off")
        spec = NodeSpec(
            state_dir=str(files.root), engine_dir=folder, token_file="", head_address="", node_address="127.0.0.1",
            is_head=True, settings=settings.model_dump(mode="json"),
        )  # fmt: skip
        write_spec(files, spec)
        os.environ[NODE_SPEC_VARIABLE] = str(files.node)
        ray.init(
            num_cpus=4, include_dashboard=False, log_to_driver=False, _temp_dir=str(Path(folder, "ray")),
            _node_ip_address="127.0.0.1", object_store_memory=100 << 20, logging_level=logging.ERROR,
        )  # fmt: skip
        try:
            yield ray.remote(_actor_class()).options(max_concurrency=8, num_cpus=0).remote(nodes)
        finally:
            ray.shutdown()


def measure(
    ranks: int, seconds: float, *, warm_up_s: float, progress: Callable[[str], None] = lambda _: None
) -> RayFigures:
    """``ranks`` ranks, eight to a node, for ``seconds`` after the warm-up; 50 incidents a minute at 10,000 ranks."""
    import ray

    nodes, per_node = -(-ranks // 8), min(ranks, 8)
    with coordinator_in_ray(nodes) as coordinator:
        pid, url = ray.get([coordinator.pid.remote(), coordinator.url.remote()])
        parts = shards(nodes, GENERATORS)
        rate = 50.0 * ranks / 10_000
        made = ray.remote(Agents).options(num_cpus=0)
        agents: list[Any] = [made.remote(part.start, len(part), per_node, rate * len(part) / nodes) for part in parts]
        progress(f"coordinator is process {pid}; {nodes} agents report, warming up for {warm_up_s:.0f} s")
        with (
            _asking(f"{url}/api/v1/overview", LOOK_EVERY_S) as top,
            _asking(f"{url}/metrics", SCRAPE_EVERY_S) as scrape,
        ):
            ray.get([one.run.remote(coordinator, warm_up_s) for one in agents])
            top.clear()
            scrape.clear()
            began_s, used_s = time.monotonic(), cpu_s(pid)
            runs = [one.run.remote(coordinator, seconds) for one in agents]
            kept = []
            while ray.wait(runs, num_returns=len(runs), timeout=MEMORY_EVERY_S)[1]:
                kept.append(private_bytes(pid))
                progress(f"{time.monotonic() - began_s:.0f} of {seconds:.0f} s, {kept[-1] / 2**20:.1f} MiB")
            took = time.monotonic() - began_s
            used_s = cpu_s(pid) - used_s
            kept.append(private_bytes(pid))
            found = ray.get(runs)
        answers = sorted(1e3 * one for times, _ in found for one in times) or [math.inf]
        return RayFigures(
            ranks, took, len(answers) / took, 100 * used_s / took,
            statistics.median(answers), answers[int(0.99 * (len(answers) - 1))], max(top, default=0.0),
            max(scrape, default=0.0), sum(begun for _, begun in found), ray.get(coordinator.incidents_open.remote()),
            tuple(kept),
        )  # fmt: skip


def _actor_class() -> type:
    from fleet.coordinator_inprocess import SimulatedEngine
    from tidegauge.cluster.ray_service import ray_engine

    class BenchCoordinator(ray_engine.CoordinatorActor):
        """The real one, but for the list of nodes."""

        def __init__(self, nodes: int) -> None:
            sys.path[:0] = [str(BENCH)]
            engine: Any = lambda: SimulatedEngine(range(nodes))  # noqa: E731  # in place of a class
            ray_engine.RayEngine = engine  # type: ignore[misc]  # that is the simulation
            super().__init__()

        def pid(self) -> int:
            return os.getpid()

        def incidents_open(self) -> int:
            return self._service._actions.status().incidents_open

    return BenchCoordinator


@contextmanager
def _asking(url: str, every_s: float) -> Iterator[list[float]]:
    """Get ``url`` again and again; yields what each answer took so far, in milliseconds."""
    took_ms: list[float] = []
    stopped = threading.Event()

    def ask() -> None:
        while not stopped.wait(every_s):
            began_s = time.perf_counter()
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    answer.read()
            except OSError:
                took_ms.append(math.inf)  # no answer in all that time: it shows in the table
            else:
                took_ms.append(1e3 * (time.perf_counter() - began_s))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        yield took_ms
    finally:
        stopped.set()
        thread.join(30)
