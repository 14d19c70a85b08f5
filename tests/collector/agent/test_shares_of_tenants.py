"""A node counts by tenant: all pods of a namespace together, each container that runs as root by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fake_node import FakeNode, identity
from tidegauge.agent.kubernetes.pods import PATIENCE_S
from tidegauge.agent.ranks import watches
from tidegauge.core.ids import GlobalRank, LocalRank, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup, PodFacts
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderTo

FACTS = [PodFacts(pod, namespace, pod, "job", "Job") for pod, namespace in (("one", "a"), ("two", "a"), ("else", "b"))]


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path / "run")


def start(node: FakeNode, pid: int, *, pod: str | None = None, container: str | None = None) -> None:
    who = identity(rank=GlobalRank(pid), local_rank=LocalRank(pid), world_size=1 << 12)
    cgroup = None if pod is None else PodCgroup(pod, None)
    node.start_rank(process=ProcessId(pid, 1), pod=cgroup, container_id=container, who=who, capacity=1).record()


def pods_with_ranks(node: FakeNode) -> Counter[str]:
    return Counter(rank.pod.pod_uid for rank in node.agent.view().ranks if rank.pod is not None)


def test_pods_of_one_namespace_share_its_places(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_RANKS_PER_TENANT", 4)
    start(node, 1, pod="one")
    node.poll()
    node.agent.hear_of_pods(FACTS)
    node.poll()
    for pid in range(2, 12):
        start(node, pid, pod=("one", "two")[pid % 2])
    start(node, 20, pod="else")
    node.poll(PATIENCE_S + 1)
    node.agent.hear_of_pods(FACTS)
    for _ in range(4):
        node.poll()
    shown = pods_with_ranks(node)
    assert (shown["one"] + shown["two"], shown["else"]) == (4, 1)


def test_pods_that_came_before_their_namespace_was_known_share_its_places_from_then_on(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watches, "MAX_RANKS_PER_TENANT", 4)
    for pid in range(1, 9):
        start(node, pid, pod=("one", "two")[pid % 2])
    start(node, 20, pod="else")
    for _ in range(2):
        node.poll(PATIENCE_S + 1)
    assert pods_with_ranks(node) == {"one": 4, "two": 4, "else": 1}, "nobody has said that they are of one namespace"
    node.agent.hear_of_pods(FACTS)
    for _ in range(2):
        node.poll()
    shown = pods_with_ranks(node)
    assert (shown["one"] + shown["two"], shown["else"]) == (4, 1)
    assert node.agent.view().series_dropped == {"ranks": 4}


def test_two_containers_that_run_as_one_uid_have_a_share_each(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "MAX_RANKS_PER_TENANT", 4)
    for pid in range(1, 9):
        start(node, pid, container="a" * 64)
    start(node, 20, container="b" * 64)
    for _ in range(4):
        node.poll()
    assert Counter(rank.container_id for rank in node.agent.view().ranks) == {"a" * 64: 4, "b" * 64: 1}


def test_orders_are_counted_to_the_namespace(node: FakeNode) -> None:
    start(node, 1, pod="one")
    order = Order("o1", OrderTo.RANK, ProcessId(1, 1), 0, {}, 1.0)
    node.poll()
    assert node.agent.tenant_of(order) == Tenant(None, pod_uid="one")
    node.poll(PATIENCE_S + 1)
    node.agent.hear_of_pods(FACTS)
    node.poll()
    node.poll()
    assert node.agent.tenant_of(order) == Tenant(None, "a")
