"""A coordinator service that has something on every page: nodes, jobs, a leak; incidents, decisions, evidence and
profiles in a real database. For tests of the whole HTTP API, and for fuzzing it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evidence_values import evidence
from loop_store import real_store, told_store
from rank_profiles import rank_profile
from sample_views import LEAK, NOW_S, job_record, rank_summary
from still_service import AwayEngine, StillLoop
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.views import NodeSummary
from tidegauge.settings import Settings

LOCAL_SOCKET = "api.sock"
STATUS = LoopStatus("act", "/etc/tidegauge/policy.yaml", incidents_open=1, scheduler_problems={"slurm": "away"})


@contextmanager
def filled_service(folder: Path) -> Iterator[CoordinatorService]:
    """Serves on a free port of loopback, and on ``LOCAL_SOCKET``, until the end of the block; ``folder`` holds that and
    its database."""
    action_loop = ActionLoop(lambda: Opened(_filled_store(folder), StillLoop(STATUS), time.time), keep_incidents_s=1e12)
    action_loop.turn()
    service = CoordinatorService(
        Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 100.0, incarnation="c"), AwayEngine(),
        exporter_pages(Settings(cluster="lab")), action_loop, cluster="lab", host="127.0.0.1", port=0,
        advertise_host="10.0.0.1", asks=EvidenceAsks(folder / "asks"), local_socket=folder / LOCAL_SOCKET,
    )  # fmt: skip
    service.start()
    try:
        ranks = (rank_summary(0), rank_summary(1, verdict=LEAK))
        for node, summaries in (("node0", ranks), ("node1", ())):
            service.coordinator.report(NodeSummary(node, node, 321, "i", f"{node}:9494", NOW_S, summaries))
        yield service
    finally:
        service.stop()
        action_loop.store().close()


def _filled_store(folder: Path) -> Store:
    """What ``loop_store`` tells, two pieces of evidence, the record of a job, and two profiles."""
    real = real_store(told_store(), folder)
    real.evidence.keep([evidence(1), evidence(0, evidence_id="auto-0")], at_s=NOW_S)
    real.jobs.save([job_record()])
    real.jobs.save_memory(
        {job_record(): JobMemory((job_record().fullest,), (RankMemory(1, (MemoryPoint(NOW_S, 9, 3, 4, None),)),))}
    )
    real.profiles.keep([rank_profile(0), rank_profile(1)], at_s=NOW_S)
    return real
