"""A rank's window on its whole way through one node, all real but the GPU: probe, files, agent, report; no Ray.

A rank that leaks is asked by an order, as the coordinator asks; what its agent reports must name the true line.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import open_node_agent
from tidegauge.agent.runner import AgentRunner
from tidegauge.analysis.snapshots.reading import read_snapshot
from tidegauge.core.evidence import Evidence, EvidenceReason
from tidegauge.core.evidence.request import Window, evidence_request
from tidegauge.core.ids import ProcessId
from tidegauge.core.orders import Order, OrderTo
from tidegauge.core.views import NodeSummary, RankSummary
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.protocol.messages import ReportReply
from tidegauge.settings import Settings

pytestmark = [pytest.mark.rig, pytest.mark.timeout(400)]

LEAKING = Path(__file__).with_name("rig_jobs") / "leaking.py"
TRUE_LINE = next(at for at, line in enumerate(LEAKING.read_text().splitlines(), 1) if "# LEAK" in line)
WINDOW = Window(warm_up_steps=4, window_steps=10, most_s=120.0)
JOB_ID = "leaking"


class Head:
    """Stands for the coordinator: hears reports, has orders, says what it kept."""

    def __init__(self) -> None:
        self.summary: NodeSummary | None = None
        self.orders: tuple[Order, ...] = ()
        self.kept: tuple[str, ...] = ()

    def report(self, summary: NodeSummary) -> ReportReply:
        self.summary = summary
        return ReportReply(
            accepted=True, coordinator="c1", orders=self.orders, evidence_kept=self.kept, snapshots_wanted=frozenset()
        )

    def rank(self) -> RankSummary | None:
        return None if self.summary is None else next((rank for rank in self.summary.ranks if rank.step > 3), None)

    def evidence(self) -> tuple[Evidence, ...]:
        return () if self.summary is None else self.summary.evidence


class Node:
    """A real agent at work, and a job that leaks a MiB a step."""

    def __init__(self, rig: Rig, scratch: Path) -> None:
        self.state = scratch / "state"
        self.head = Head()
        run_dir = scratch / "run"
        run_dir.mkdir()
        self._settings = Settings(
            run_dir=run_dir, state_dir=self.state, poll_period_s=0.1, report_period_s=0.2, cluster="lab"
        )
        environ = rig.environ(devices=1, state=scratch / "gpus")
        environ |= activation_environ("auto", environ, pythonpath=True)
        environ |= {"TIDEGAUGE_RUN_DIR": str(run_dir), "TIDEGAUGE_JOB_ID": JOB_ID}
        self.job = subprocess.Popen(
            [str(rig.python), str(LEAKING)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.start_agent()

    def start_agent(self) -> None:
        self.agent = open_node_agent(self._settings, {})
        self.runner = AgentRunner(
            self.agent, DirectReporter(self.head.report), open_job_settings(self._settings, {}),
            poll_period_s=0.1, report_period_s=0.2, node_id="n1", incarnation="i1",
        )  # fmt: skip
        self.runner.start()

    def stop_agent(self) -> None:
        self.runner.stop(60.0)
        self.agent.close()

    def order(self, request: dict[str, object], process: ProcessId, uid: int) -> None:
        order_id = f"order-{len(self.head.orders)}"
        self.head.orders = (*self.head.orders, Order(order_id, OrderTo.RANK, process, uid, request, 60.0))

    def close(self) -> None:
        self.job.kill()
        self.job.communicate(timeout=30)
        self.stop_agent()


@pytest.fixture
def node(rig: Rig, tmp_path: Path) -> Iterator[Node]:
    node = Node(rig, tmp_path)
    yield node
    node.close()


def test_a_window_that_was_ordered_comes_back_as_evidence_with_the_true_line(node: Node) -> None:
    rank = eventually(node.head.rank, "the rank", within_s=150)
    node.order(evidence_request("auto-1", EvidenceReason.SUSPECTED, WINDOW), rank.process, rank.uid)
    [evidence] = eventually(node.head.evidence, "evidence", within_s=150)
    assert (evidence.evidence_id, evidence.reason, evidence.problems) == ("auto-1", "suspected", ())
    assert (evidence.job.job_id, evidence.process) == (JOB_ID, rank.process)
    line = evidence.growth[0].line
    assert line is not None
    assert (line.filename, line.line, line.function) == (str(LEAKING), TRUE_LINE, "keep")
    assert evidence.window_steps == WINDOW.window_steps
    assert evidence.growth[0].blocks == WINDOW.window_steps
    assert evidence.search is not None
    assert "history" in evidence.search.holders[0].path
    early, late = (read_snapshot(str(node.state / "snapshots" / one.key)) for one in evidence.snapshots)
    assert set(early.traces) == set(late.traces) == {0}

    node.stop_agent()  # it dies before anybody has said that the evidence is kept
    node.head.summary = None
    node.start_agent()
    assert eventually(node.head.evidence, "the same evidence again") == (evidence,)
    node.head.kept = ("auto-1",)
    eventually(lambda: node.head.evidence() == (), "its end")


def test_a_rank_that_is_killed_right_after_its_window_has_left_it_to_the_agent(node: Node, tmp_path: Path) -> None:
    rank = eventually(node.head.rank, "the rank", within_s=150)
    node.order(evidence_request("auto-2", EvidenceReason.ASKED, WINDOW), rank.process, rank.uid)
    eventually(lambda: list(tmp_path.glob("run/*/*.evidence.json")), "the rank's file", within_s=150)
    node.job.kill()
    [evidence] = eventually(node.head.evidence, "evidence")
    assert (evidence.evidence_id, len(evidence.snapshots)) == ("auto-2", 2)
