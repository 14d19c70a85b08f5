"""What one turn of incidents and actions costs the coordinator, and one scrape of its ``/metrics``.

A coordinator with 1,250 nodes of one job and 8 ranks each, 200 of the jobs leaking on one rank, a user for every 25
jobs, the default policy and a fresh SQLite file: first the turn that opens all incidents at once, then turns as they
are each second, every node reporting in between. Prints one JSON object; times are milliseconds. Targets: a turn takes
half of its second at most, and so does a scrape. Exits with 1 if a median misses that.

    python bench/closed_loop_cost.py [--jobs 1250] [--incidents 200] [--repeat 20]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tidegauge.cluster.api.loop_api import loop_figures
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.incidents.actions import Switches
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, NodeSummary, RankSummary
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_scheduler_hooks.closed_loop import ClosedLoop
from tidegauge_scheduler_hooks.policy.files import PolicySource
from tidegauge_scheduler_hooks.tidegauge_run.adapter import LocalScheduler

TARGET_MS = 500.0
RANKS = 8
GIB = 1024**3
LEAK = Verdict(
    LeakState.LEAK,
    Severity.CRITICAL,
    Signal.ALLOCATED,
    onset_step=40,
    bytes_per_step=Band(1e7, 1.2e7, 1.3e7),
    grown_bytes=GIB,
    seconds_to_oom=Band(80_000.0, 100_000.0, 130_000.0),
)


def node(index: int, *, leaks: bool, now_s: float) -> NodeSummary:
    keeper = ProcessId(900, 1_000 + index)
    launch = LaunchSummary(
        keeper, _uid(index), f"job-{index}", "llm-pretrain", restarts=0, state=LaunchState.RUNNING, requeueable=True,
        exempt=False, gpu_share=None, started_unix_s=now_s - 3600.0,
    )  # fmt: skip
    return NodeSummary(
        node_id=f"node-{index}",
        hostname=f"gpu-node-{index:04}",
        agent_pid=4000,
        incarnation="1",
        metrics_address=None,
        sent_unix_s=now_s,
        ranks=tuple(_rank(index, rank, keeper, leaks=leaks and rank == 3, now_s=now_s) for rank in range(RANKS)),
        gpus=tuple(
            GpuView(_uuid(index, gpu), gpu, "NVIDIA H200", 141 * GIB, 100 * GIB, 0, 140 * GIB) for gpu in range(RANKS)
        ),
        launches=(launch,),
    )


def _uid(index: int) -> int:
    return 1000 + index // 25


def _uuid(node_index: int, gpu: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{node_index:08x}-{gpu:04x}-4c1e-9d3f-2f1c8a7b6e5d")


def _rank(index: int, rank: int, keeper: ProcessId, *, leaks: bool, now_s: float) -> RankSummary:
    identity = RankIdentity(
        job_id=JobId(f"job-{index}"),
        attempt=0,
        rank=GlobalRank(rank),
        local_rank=LocalRank(rank),
        world_size=RANKS,
        hostname=f"gpu-node-{index:04}",
        torch_version="2.13.0",
        checkpoint="callback",
    )
    return RankSummary(
        identity=identity,
        process=ProcessId(40_000 + rank, 123_456),
        uid=_uid(index),
        user_name="ada",
        gpu=rank,
        uuid=_uuid(index, rank),
        step=100_000,
        allocated_bytes=50 * GIB,
        reserved_bytes=60 * GIB,
        nontorch_bytes=3 * GIB,
        limit_bytes=141 * GIB,
        host_rss_bytes=20 * GIB,
        last_sample_unix_s=now_s,
        verdict=LEAK if leaks else OK,
        alive=True,
        launch=keeper,
    )


class Site:
    """A cluster on which only time passes. The policy observes, so that nobody is waited for."""

    def __init__(self, folder: Path, *, jobs: int, incidents: int) -> None:
        self.now_s = 1.8e9
        self._jobs, self._incidents = jobs, incidents
        self.coordinator = Coordinator(
            wall_s=lambda: self.now_s, monotonic_s=lambda: self.now_s, incarnation="bench", stale_after_s=1e9
        )
        self.store: Store = open_store(sqlite_url(folder))
        self.loop = ClosedLoop(
            cluster=self.coordinator,
            incidents=self.store.incidents,
            audit=self.store.audit,
            schedulers={"local": LocalScheduler(self.coordinator.orders)},
            policy=PolicySource(None),
            switches=Switches,
            now_s=lambda: self.now_s,
            monotonic_s=lambda: self.now_s,
            wall_s=lambda: self.now_s,
            submit=lambda call: call(),
        )

    def report(self) -> None:
        """A second later, every node is where it was."""
        self.now_s += 1.0
        for index in range(self._jobs):
            self.coordinator.report(node(index, leaks=index < self._incidents, now_s=self.now_s))

    def scrape(self) -> int:
        jobs = self.coordinator.jobs()
        figures = loop_figures(
            lambda: self.store,
            self.loop.status(),
            slurm={},
            jobs=jobs,
            nodes=self.coordinator.nodes(),
            now_unix_s=self.now_s,
        )
        page = job_metrics(jobs, cluster="bench", now_unix_s=self.now_s, loop=figures)
        return len(page.body)


def timed_ms(call: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1250)
    parser.add_argument("--incidents", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=20)
    args = parser.parse_args()
    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder), jobs=args.jobs, incidents=args.incidents)
        site.report()
        first_ms = timed_ms(site.loop.tick)
        turns_ms, scrapes_ms, views_ms = [], [], []
        for _ in range(args.repeat):
            site.report()
            turns_ms.append(timed_ms(site.loop.tick))
            scrapes_ms.append(timed_ms(site.scrape))
            views_ms.append(timed_ms(site.coordinator.jobs))
        result = {
            "first_turn_ms": round(first_ms, 1),
            "turn_ms": round(statistics.median(turns_ms), 1),
            "turn_worst_ms": round(max(turns_ms), 1),
            "of_it_joining_jobs_ms": round(statistics.median(views_ms), 1),
            "scrape_ms": round(statistics.median(scrapes_ms), 1),
            "scrape_bytes": site.scrape(),
            "incidents_open": site.loop.status().incidents_open,
            "decisions": len(list(site.store.audit.each(since_s=0.0))),
            "ranks": args.jobs * RANKS,
            "python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores",
        }
        site.store.close()
    print(json.dumps(result, indent=2))
    return int(max(result["turn_ms"], result["scrape_ms"]) > TARGET_MS)


if __name__ == "__main__":
    raise SystemExit(main())
