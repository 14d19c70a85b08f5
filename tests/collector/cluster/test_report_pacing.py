"""How often agents are asked to report, and what follows from it: when a node is stale, how long an order may take."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest

from sample_views import LEAK, rank_summary
from tidegauge.cluster.coordinator.coordinator import STALE_AFTER_S, Coordinator
from tidegauge.cluster.coordinator.order_queue import TALK_S
from tidegauge.cluster.coordinator.report_pacing import MAX_QUICK_NODES, MAX_REPORTS_PER_S, SOON_S, stale_limit_s
from tidegauge.cluster.ray_service.agent_reconciler import FRESH_S, AgentReconciler
from tidegauge.cluster.views import EngineNode, NodeHealth
from tidegauge.core.ids import JobId, JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.orders import OrderResult, Reply
from tidegauge.core.verdicts import Band
from tidegauge.core.views import NodeSummary, RankSummary
from waiting import PATIENCE_S, eventually

MANY = 1250
EVERY_S = MANY / MAX_REPORTS_PER_S


@dataclass
class Cluster:
    now_s: float = 1000.0

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(wall_s=self.time_s, monotonic_s=self.time_s, incarnation="c")

    def time_s(self) -> float:
        return self.now_s

    def joined(self, nodes: int) -> None:
        self.coordinator.engine_nodes(EngineNode(f"n{n}", f"host{n}", "10.0.0.1") for n in range(nodes))

    def report(self, node: int = 0, *ranks: RankSummary, results: tuple[OrderResult, ...] = ()) -> float:
        summary = NodeSummary(f"n{node}", f"host{node}", 1, "i", None, self.now_s, ranks, order_results=results)
        return self.coordinator.report(summary).report_every_s

    def health(self, node: int = 0) -> NodeHealth:
        return next(one.health for one in self.coordinator.nodes() if one.node_id == f"n{node}")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def leaking(job: int, *, within_s: float) -> RankSummary:
    rank = rank_summary(0, verdict=LEAK._replace(seconds_to_oom=Band(within_s, within_s, within_s)))
    return replace(rank, identity=rank.identity._replace(job_id=JobId(str(job))))


def test_a_small_cluster_is_left_to_its_setting(cluster: Cluster) -> None:
    cluster.joined(int(MAX_REPORTS_PER_S))
    assert cluster.report() == 0.0


def test_a_large_cluster_shares_out_what_one_coordinator_can_take(cluster: Cluster) -> None:
    cluster.joined(MANY)
    assert cluster.report() == EVERY_S


def test_a_paced_node_is_stale_after_three_of_its_reports_and_well_when_it_reports(cluster: Cluster) -> None:
    cluster.joined(MANY)
    cluster.report(0, rank_summary(0))
    cluster.now_s += 3 * EVERY_S
    assert cluster.health() is NodeHealth.OK
    cluster.now_s += 0.1
    assert cluster.health() is NodeHealth.STALE
    assert cluster.coordinator.jobs()[0].stale == (0,)
    assert f"for {3 * EVERY_S:.0f} s" in cluster.coordinator.events()[-1].text
    cluster.report(0, rank_summary(0))
    assert cluster.health() is NodeHealth.OK
    assert cluster.coordinator.jobs()[0].stale == ()


def test_a_node_that_reports_every_second_is_stale_as_before(cluster: Cluster) -> None:
    cluster.joined(3)
    cluster.report()
    cluster.now_s += STALE_AFTER_S + 0.1
    assert cluster.health() is NodeHealth.STALE
    assert stale_limit_s(0.0, at_least_s=STALE_AFTER_S) == STALE_AFTER_S


def test_nodes_of_a_job_that_is_soon_out_of_memory_report_as_their_setting_says(cluster: Cluster) -> None:
    cluster.joined(MANY)
    cluster.report(0, leaking(1, within_s=SOON_S))
    cluster.report(1, leaking(2, within_s=SOON_S + 1))
    cluster.coordinator.jobs()
    assert (cluster.report(0, leaking(1, within_s=SOON_S)), cluster.report(1)) == (0.0, EVERY_S)


def test_alarms_do_not_make_the_whole_cluster_quick(cluster: Cluster) -> None:
    cluster.joined(MANY)
    for node in range(2 * MAX_QUICK_NODES):
        cluster.report(node, leaking(node, within_s=60.0))
    cluster.coordinator.jobs()
    paces = [cluster.report(node, leaking(node, within_s=60.0)) for node in range(2 * MAX_QUICK_NODES)]
    assert paces.count(0.0) == MAX_QUICK_NODES


def test_an_order_waits_for_a_paced_node_and_more_are_then_expected(cluster: Cluster) -> None:
    cluster.joined(MANY)
    cluster.report()
    replies: list[Reply] = []
    job, target = JobKey("j", 0, 1001), RankTarget(0, "n0", ProcessId(7, 7), 1)
    queue = cluster.coordinator.orders

    def ask() -> None:
        replies.append(queue.ask_ranks(job, [target], {"command": "ping"}, timeout_s=10.0)[0])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    eventually(lambda: queue.orders_for("n0"))
    cluster.now_s += 10.0 + EVERY_S - 0.1  # it would be over for a node that reports every second
    (order,) = queue.orders_for("n0")
    assert cluster.report() == 0.0
    cluster.report(0, results=(OrderResult(order.order_id, reply={"ok": True}),))
    asking.join(PATIENCE_S)
    assert [reply.value for reply in replies] == [{"ok": True}]
    assert cluster.report() == 0.0
    cluster.now_s += TALK_S + EVERY_S
    assert cluster.report() == EVERY_S


def test_the_keeper_does_not_miss_an_agent_that_was_asked_to_be_silent(cluster: Cluster) -> None:
    class Engine:
        def __init__(self) -> None:
            self.ensured: list[str] = []

        def alive_nodes(self) -> tuple[EngineNode, ...]:
            return tuple(EngineNode(f"n{n}", f"host{n}", "10.0.0.1") for n in range(MANY))

        def ensure_agent(self, node_id: str) -> None:
            self.ensured.append(node_id)

        def hold_agent(self, node_id: str) -> None: ...

        def end_agent(self, node_id: str) -> None: ...

    engine = Engine()
    keeper = AgentReconciler(engine, cluster.coordinator, monotonic_s=cluster.time_s)
    cluster.joined(MANY)
    cluster.report()
    assert EVERY_S > FRESH_S
    cluster.now_s += EVERY_S + 1.0
    keeper.tick()
    assert "n0" not in engine.ensured
    assert "n1" in engine.ensured
