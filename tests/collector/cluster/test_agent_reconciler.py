"""`AgentReconciler`: one agent on every alive node, with an engine that plays along or does not."""

from __future__ import annotations

import pytest

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.ray_service.agent_reconciler import (
    LATE_TICK_S,
    RETRY_S,
    WEDGED_S,
    AgentReconciler,
    EngineError,
)
from tidegauge.cluster.views import EngineNode, NodeHealth
from tidegauge.core.views import NodeSummary


class FakeEngine:
    """Lists the nodes it is told to and remembers what it was asked."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.asked: list[tuple[str, str]] = []
        self.broken: set[str] = set()
        self.away = False

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        if self.away:
            raise EngineError("away")
        return tuple(EngineNode(node, f"host-{node}", "10.0.0.1") for node in self.nodes)

    def ensure_agent(self, node_id: str) -> None:
        self._do("ensure", node_id)

    def hold_agent(self, node_id: str) -> None:
        self._do("hold", node_id)

    def end_agent(self, node_id: str) -> None:
        self._do("end", node_id)

    def _do(self, what: str, node_id: str) -> None:
        self.asked.append((what, node_id))
        if node_id in self.broken:
            raise EngineError(f"{node_id} is broken")


class Cluster:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.engine = FakeEngine()
        self.coordinator = Coordinator(wall_s=lambda: 0.0, monotonic_s=lambda: self.now_s, incarnation="c")
        self.keeper = AgentReconciler(self.engine, self.coordinator, monotonic_s=lambda: self.now_s)

    def tick(self, *, after_s: float = 1.0) -> list[tuple[str, str]]:
        self.now_s += after_s
        self.engine.asked.clear()
        self.keeper.tick()
        return list(self.engine.asked)

    def report(self, node_id: str, incarnation: str = "i1") -> None:
        self.coordinator.report(NodeSummary(node_id, f"host-{node_id}", 1, incarnation, None, self.now_s))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_every_node_that_joins_gets_an_agent(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    assert cluster.tick() == [("ensure", "a")]
    cluster.engine.nodes = ["a", "b"]
    assert cluster.tick() == [("ensure", "b")]


def test_an_agent_that_has_not_reported_yet_is_asked_for_again_only_after_a_while(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    assert cluster.tick(after_s=RETRY_S - 1) == []
    assert cluster.tick(after_s=1) == [("ensure", "a")]


def test_an_agent_that_reports_is_put_on_hold_once_per_incarnation(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    assert cluster.tick() == [("hold", "a")]
    cluster.report("a")
    assert cluster.tick() == []
    cluster.report("a", incarnation="i2")
    assert cluster.tick() == [("hold", "a")]


def test_an_agent_that_falls_silent_is_looked_for(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.tick()
    assert cluster.tick(after_s=6) == [("ensure", "a")]


def test_an_agent_that_stays_silent_is_replaced(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.tick()
    asked = [step for _ in range(int(WEDGED_S / RETRY_S) + 2) for step in cluster.tick(after_s=RETRY_S)]
    assert asked.count(("end", "a")) == 1
    assert asked[asked.index(("end", "a")) + 1] == ("ensure", "a")


def test_an_agent_is_not_replaced_for_the_time_in_which_the_head_was_stopped(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.tick()
    assert cluster.tick(after_s=10 * WEDGED_S) == [("ensure", "a")]
    asked = [step for _ in range(int(WEDGED_S / RETRY_S)) for step in cluster.tick(after_s=RETRY_S)]
    assert ("end", "a") not in asked
    assert ("end", "a") in cluster.tick(after_s=RETRY_S)


def test_an_agent_is_not_replaced_for_the_time_in_which_the_engine_was_away(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.tick()
    cluster.engine.away = True
    for _ in range(int(WEDGED_S / LATE_TICK_S) + 1):
        with pytest.raises(EngineError):
            cluster.tick(after_s=LATE_TICK_S)
    cluster.engine.away = False
    assert cluster.tick() == [("ensure", "a")]


def test_trouble_with_one_node_does_not_keep_the_others_waiting(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a", "b"]
    cluster.engine.broken = {"a"}
    assert cluster.tick() == [("ensure", "a"), ("ensure", "b")]
    assert cluster.tick(after_s=RETRY_S)[0] == ("ensure", "a")


def test_a_node_that_is_lost_is_gone_and_nothing_more_is_done_for_it(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.engine.nodes = []
    assert cluster.tick(after_s=20) == []
    assert [node.health for node in cluster.coordinator.nodes()] == [NodeHealth.GONE]


def test_while_the_engine_is_away_no_node_is_declared_gone(cluster: Cluster) -> None:
    cluster.engine.nodes = ["a"]
    cluster.tick()
    cluster.report("a")
    cluster.engine.away = True
    with pytest.raises(EngineError):
        cluster.tick()
    assert [node.health for node in cluster.coordinator.nodes()] == [NodeHealth.OK]
