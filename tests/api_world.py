"""A coordinator service that has something on every page: nodes, jobs, a leak; incidents, decisions and evidence in a
real database. For tests of the whole HTTP API, and for fuzzing it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from evidence_values import evidence
from loop_store import told_store
from sample_views import LEAK, NOW_S, rank_summary
from tidegauge.agent.settings import Settings
from tidegauge.cluster.action_desk import ActionDesk, Opened
from tidegauge.cluster.agent_keeper import EngineError
from tidegauge.cluster.coordinator import Coordinator
from tidegauge.cluster.coordinator_service import CoordinatorService
from tidegauge.cluster.evidence_asks import EvidenceAsks
from tidegauge.cluster.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.cluster.views import EngineNode
from tidegauge.core.actions import LoopStatus
from tidegauge.core.incidents import JobKey
from tidegauge.core.loop_figures import SlurmLabels
from tidegauge.core.views import NodeSummary


class AwayEngine:
    """No node is added or lost: the service answers from what agents have told."""

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        raise EngineError("away")

    def ensure_agent(self, node_id: str) -> None:
        raise EngineError("away")

    hold_agent = end_agent = ensure_agent


class StillLoop:
    """A closed loop that does nothing more."""

    def tick(self) -> None:
        pass

    def status(self) -> LoopStatus:
        return LoopStatus("act", "/etc/tidegauge/policy.yaml", incidents_open=1, scheduler_problems={"slurm": "away"})

    def slurm_labels(self) -> Mapping[JobKey, SlurmLabels]:
        return {}


@contextmanager
def filled_service(folder: Path) -> Iterator[CoordinatorService]:
    """Serves on a free port of loopback until the end of the block; ``folder`` holds its database."""
    desk = ActionDesk(lambda: Opened(_filled_store(folder), StillLoop(), time.time), keep_incidents_s=1e12)
    desk.turn()
    service = CoordinatorService(
        Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 100.0, incarnation="c"), AwayEngine(),
        exporter_pages(Settings(cluster="lab")), desk, cluster="lab", host="127.0.0.1", port=0,
        advertise_host="10.0.0.1", asks=EvidenceAsks(folder / "asks"),
    )  # fmt: skip
    service.start()
    try:
        ranks = (rank_summary(0), rank_summary(1, verdict=LEAK))
        for node, summaries in (("node0", ranks), ("node1", ())):
            service.coordinator.report(NodeSummary(node, node, 321, "i", f"{node}:9494", NOW_S, summaries))
        yield service
    finally:
        service.stop()
        desk.store().close()


def _filled_store(folder: Path) -> Store:
    """What ``loop_store`` tells, and two pieces of evidence."""
    told, real = told_store(), open_store(sqlite_url(folder))
    real.incidents.save(told.incidents.story)
    for made in told.audit.made:
        name = made.decision.decision_id
        real.audit.write_ahead([made.decision])
        for _ in range(made.starts):
            real.audit.begin(name, at_s=made.started_s or 0.0)
        if made.outcome is not None:
            real.audit.finish(name, made.outcome, made.detail or "", at_s=made.finished_s or 0.0)
    real.evidence.keep([evidence(1), evidence(0, evidence_id="auto-0")], at_s=NOW_S)
    return real
