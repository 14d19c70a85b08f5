"""Orders find their process after its node's engine was started again, and with it the node's id has changed."""

from __future__ import annotations

import threading
from collections.abc import ItemsView
from concurrent.futures import Future
from typing import Any

import pytest

from sample_views import identity, rank_summary
from tidegauge.cluster.coordinator.coordinator import Coordinator, present_nodes
from tidegauge.cluster.coordinator.known_node import KnownNode, RankOfProcess
from tidegauge.cluster.views import EngineNode
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.orders import OrderResult
from tidegauge.core.views import NodeSummary, RankSummary
from waiting import PATIENCE_S, eventually

KEEPER = ProcessId(7, 70)
RANK = rank_summary(0, launch=KEEPER)
JOB = JobKey(RANK.identity.job_id, RANK.identity.attempt, RANK.uid)
LAUNCH = LaunchSummary(
    KEEPER, RANK.uid, JOB.job_id, None, restarts=0, state=LaunchState.RUNNING, requeueable=True, exempt=False,
    gpu_share=None, started_unix_s=1e9,
)  # fmt: skip
TARGET = RankTarget(0, "before", RANK.process, step=5)
OLD, NEW, OTHER = "before", "after", "other"


class Nodes:
    """A coordinator, and nodes that answer the orders in the replies to their reports."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(wall_s=lambda: 1e9, monotonic_s=lambda: 50.0, incarnation="c1")

    def report(self, node_id: str, *ranks: RankSummary, **more: Any) -> list[str]:
        """Returns the ids of the orders in the reply."""
        summary = NodeSummary(
            node_id=node_id, hostname="node-a", agent_pid=1, incarnation=f"i-{node_id}", metrics_address="a:1",
            sent_unix_s=1e9, ranks=ranks, **more,
        )  # fmt: skip
        return [order.order_id for order in self.coordinator.report(summary).orders]

    def engine_lists(self, *node_ids: str) -> None:
        self.coordinator.engine_nodes([EngineNode(node_id, "node-a", "10.0.0.1") for node_id in node_ids])

    def who_is_asked(self, *, keeper: bool) -> str:
        """The node that gets an order which was meant for ``OLD``."""
        queue, future = self.coordinator.orders, Future[Any]()

        def ask() -> None:
            if keeper:
                handle = {"pid": KEEPER.pid, "start_ticks": KEEPER.start_ticks}
                future.set_result(queue.ask_launch(JOB, OLD, handle, {"command": "describe"}, timeout_s=60))
            else:
                future.set_result(queue.ask_ranks(JOB, [TARGET], {"command": "ping"}, timeout_s=60))

        threading.Thread(target=ask, daemon=True).start()
        ordered = eventually(lambda: [(node, order) for node in (OLD, NEW, OTHER) for order in queue.orders_for(node)])
        node_id, order = ordered[0]
        queue.take_results(node_id, [OrderResult(order.order_id, reply={"step": 9})])
        future.result(PATIENCE_S)
        return node_id


@pytest.fixture
def nodes() -> Nodes:
    one = Nodes()
    one.engine_lists(OLD)
    one.report(OLD, RANK, launches=(LAUNCH,))
    return one


@pytest.mark.parametrize("keeper", [False, True], ids=["rank", "keeper"])
def test_a_process_is_asked_through_its_node(nodes: Nodes, keeper: bool) -> None:
    assert nodes.who_is_asked(keeper=keeper) == OLD


@pytest.mark.parametrize("keeper", [False, True], ids=["rank", "keeper"])
def test_a_process_is_asked_through_the_id_that_its_node_has_now(nodes: Nodes, keeper: bool) -> None:
    nodes.engine_lists(NEW)
    nodes.report(NEW, RANK, launches=(LAUNCH,))
    assert nodes.who_is_asked(keeper=keeper) == NEW


@pytest.mark.parametrize("keeper", [False, True], ids=["rank", "keeper"])
def test_a_coordinator_that_never_knew_the_old_id_finds_it_too(keeper: bool) -> None:
    nodes = Nodes()
    nodes.engine_lists(NEW)
    nodes.report(NEW, RANK, launches=(LAUNCH,))
    assert nodes.who_is_asked(keeper=keeper) == NEW


@pytest.mark.parametrize("keeper", [False, True], ids=["rank", "keeper"])
def test_a_like_process_of_another_job_or_user_is_not_asked(nodes: Nodes, keeper: bool) -> None:
    nodes.engine_lists(OTHER)
    others = rank_summary(0, identity=identity(0, job_id="another"), launch=KEEPER)
    nodes.report(OTHER, others, launches=(LaunchSummary(**{**LAUNCH.__dict__, "uid": RANK.uid + 1}),))
    assert nodes.who_is_asked(keeper=keeper) == OLD


@pytest.mark.parametrize("keeper", [False, True], ids=["rank", "keeper"])
def test_two_that_it_could_be_are_not_guessed_between(nodes: Nodes, keeper: bool) -> None:
    nodes.engine_lists(NEW, OTHER)
    nodes.report(NEW, RANK, launches=(LAUNCH,))
    nodes.report(OTHER, RANK, launches=(LAUNCH,))
    assert nodes.who_is_asked(keeper=keeper) == OLD


class CountedRanks(dict[RankOfProcess, RankSummary]):
    """How often they were gone through."""

    looks = 0

    def items(self) -> ItemsView[RankOfProcess, RankSummary]:  # type: ignore[override] # SAFETY: a view of the same
        self.looks += 1
        return super().items()


def known(node_id: str, *ranks: RankSummary) -> tuple[KnownNode, CountedRanks]:
    held = CountedRanks({(rank.identity.key, rank.process): rank for rank in ranks})
    return KnownNode(node_id, ranks=held), held


def test_many_processes_are_found_by_going_through_the_ranks_once() -> None:
    ranks = [rank_summary(number, process=ProcessId(100 + number, 7)) for number in range(4)]
    (new, in_new), (other, in_other) = known(NEW, ranks[0], ranks[1]), known(OTHER, ranks[2], ranks[0])
    targets = [(rank.process, OLD) for rank in ranks] + [(ranks[2].process, NEW)]
    found = present_nodes({NEW: new, OTHER: other}, JOB, targets)
    assert found == [OLD, NEW, OTHER, OLD, NEW], "two have the first, nobody the fourth; the last node is there"
    assert (in_new.looks, in_other.looks) == (1, 1)


def test_process_location_scans_no_ranks_if_every_node_is_present() -> None:
    node, ranks = known(NEW, RANK)
    assert present_nodes({NEW: node}, JOB, [(RANK.process, NEW)]) == [NEW]
    assert ranks.looks == 0
