"""One node's agent in a process of its own, all of it but Ray: what ``fleet.agent`` measures.

    PYTHONPATH=bench python -m fleet.agent_process --run-dir DIR --state-dir DIR [--gpus 8]

Says where ``/metrics`` is in one line of JSON, works until its standard input ends, and then says what it has seen.

Simulated: the driver (every rank has what it reserves and 2 GiB more on a GPU, as of the last poll), and the way to the
coordinator: a report is made into bytes, as it is for Ray, and dropped.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tidegauge.agent import node_agent
from tidegauge.agent.ports import GpuReading
from tidegauge.cluster.ray_service.agent_service import AgentService
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.views import NodeSummary, NodeView
from tidegauge.protocol.coding import encode
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.server import MetricsServer

GIB = 1 << 30


class DroppingReporter:
    """``agent.runner.Reporter`` whose reports go nowhere."""

    def __init__(self) -> None:
        self.reports = 0
        self.report_bytes = 0
        """Of the last one."""

    def report(self, summary: NodeSummary) -> bool:
        self.report_bytes = len(encode(summary))
        self.reports += 1
        return True

    def hear(self) -> None:
        """Nobody answers: so the agent never learns of a slower pace, and reports as often as a small fleet's does."""

    def listen(self, on_reply: Callable[[], None]) -> None:
        """Nobody answers."""


class SimulatedGpus:
    """The ``GpuSource`` of a machine with ``gpus`` GPUs, on which the agent's own ranks are."""

    def __init__(self, gpus: int, view: Callable[[], NodeView]) -> None:
        self._uuids = [DeviceUuid(f"GPU-{gpu:08x}-0000-0000-0000-000000000000") for gpu in range(gpus)]
        self._view = view

    def read(self) -> tuple[GpuReading, ...]:
        used: dict[DeviceUuid | None, dict[int, int | None]] = {uuid: {} for uuid in self._uuids}
        for rank in self._view().ranks:
            if rank.alive and rank.uuid in used:
                used[rank.uuid][rank.process.pid] = rank.reserved_bytes + 2 * GIB
        total = 1 << 50  # more ranks share a card here than any card holds
        return tuple(
            GpuReading(uuid, gpu, "simulated", total, total // 2, total // 2, used[uuid])
            for gpu, uuid in enumerate(self._uuids)
        )

    def close(self) -> None:
        """Nothing is open."""


class TimedAgent(node_agent.NodeAgent):
    """Notes the processor time of every poll."""

    polls_s: list[float]

    def poll(self) -> None:
        began_s = time.thread_time()
        super().poll()
        self.polls_s.append(time.thread_time() - began_s)


def open_agent(settings: Settings, gpus: int) -> TimedAgent:
    """As ``AgentActor`` opens it, on a machine with so many GPUs."""
    agent = node_agent.open_node_agent(settings)
    agent.__class__ = TimedAgent
    assert isinstance(agent, TimedAgent)
    agent.polls_s = []
    if gpus:
        agent._gpus = SimulatedGpus(gpus, agent.view)
    return agent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=8)
    args = parser.parse_args()
    settings = Settings(run_dir=args.run_dir, state_dir=args.state_dir, metrics_port=0)
    agent, reporter = open_agent(settings, args.gpus), DroppingReporter()
    service = AgentService(
        agent, settings, node_id="simulated", reporter=reporter,
        open_metrics=lambda view, host, port: MetricsServer(view, host=host, port=port),
    )  # fmt: skip
    service.start()
    print(json.dumps({"metrics": service.metrics_address}), flush=True)
    sys.stdin.read()
    view = agent.view()
    service.stop()
    print(json.dumps({
        "ranks": len(view.ranks),
        "steps": sum(rank.steps for rank in view.ranks),
        "points": view.detector_points,
        "records_lost": view.records_lost,
        "records_refused": view.records_refused,
        "skipped": dict(view.rings_skipped),
        "dropped": dict(view.series_dropped),
        "failing": sorted(source for source, worked in view.collect_success.items() if not worked),
        "polls": len(agent.polls_s),
        "poll_ms": round(1e3 * statistics.median(agent.polls_s), 3),
        "worst_poll_ms": round(1e3 * max(agent.polls_s), 1),
        "reports": reporter.reports,
        "report_bytes": reporter.report_bytes,
    }), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
