from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from fake_node import FakeClock
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.order_queue import OrderQueue, reply_of
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.orders import GONE, Order, OrderResult, OrderTo, Reply
from tidegauge.core.views import NodeSummary
from tidegauge.protocol.messages import ReportReply
from tidegauge_scheduler_hooks.ports import ProcessCommands
from waiting import PATIENCE_S, eventually

T = TypeVar("T")

JOB = JobKey("job-1", 0, 1001)
REQUEST = {"command": "ping"}


def target(rank: int, node_id: str = "n1") -> RankTarget:
    return RankTarget(rank, node_id, ProcessId(100 + rank, 7), step=5)


class Stage:
    """A queue with a clock of its own, and people who ask it in threads."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.queue = OrderQueue(
            incarnation="c1",
            hostname_of=lambda node_id: {"n1": "node7"}.get(node_id, ""),
            expected_every_s=lambda _: 0.0,
            where_now=lambda _, targets: [place[1] for place in targets],
            monotonic_s=self.clock.monotonic_s,
        )

    def ask(self, call: Callable[[], T]) -> Future[T]:
        """In a daemon thread: one that is never answered must not hold up the end of the tests."""
        future: Future[T] = Future()
        threading.Thread(target=lambda: future.set_result(call()), daemon=True).start()
        return future

    def orders(self, count: int, *nodes: str) -> list[Order]:
        """The orders of these nodes, once there are ``count``."""

        def found() -> list[Order]:
            orders = [order for node in nodes or ("n1",) for order in self.queue.orders_for(node)]
            return orders if len(orders) >= count else []

        return eventually(found)

    def time_is_up(self, seconds: float) -> None:
        self.clock.pass_s(seconds)
        self.queue.take_results("any", [OrderResult("nobody's")])  # wakes those who wait


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_order_queue_implements_process_commands(stage: Stage) -> None:
    commands: ProcessCommands = stage.queue
    assert commands.ask_ranks(JOB, [], REQUEST, timeout_s=0) == {}


def test_the_nodes_of_all_ranks_are_looked_up_at_once() -> None:
    asked: list[tuple[JobKey, list[tuple[ProcessId, str]]]] = []

    def where_now(job: JobKey, targets: Sequence[tuple[ProcessId, str]]) -> list[str]:
        asked.append((job, list(targets)))
        return ["n2"] * len(targets)

    queue = OrderQueue(
        incarnation="c1", hostname_of=lambda node_id: node_id, expected_every_s=lambda _: 0.0, where_now=where_now
    )
    replies = queue.ask_ranks(JOB, [target(0), target(3)], REQUEST, timeout_s=0)
    assert asked == [(JOB, [(ProcessId(100, 7), "n1"), (ProcessId(103, 7), "n1")])]
    assert {reply.error for reply in replies.values()} == {"no answer from the agent on n2 within 0 s"}


def test_each_rank_gets_an_order_for_its_process_and_owner(stage: Stage) -> None:
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, [target(0), target(3, "n2")], REQUEST, timeout_s=60))
    first, second = stage.orders(2, "n1", "n2")
    assert first == Order("c1-1", OrderTo.RANK, ProcessId(100, 7), 1001, REQUEST, 57.0)
    assert (second.order_id, second.process) == ("c1-2", ProcessId(103, 7))
    stage.queue.take_results("n2", [OrderResult("c1-2", reply={"ok": True, "step": 9})])
    stage.queue.take_results("n1", [OrderResult("c1-1", error="no rank with pid 100 lives here")])
    assert asking.result(PATIENCE_S) == {
        0: Reply(error="no rank with pid 100 lives here"),
        3: Reply(value={"ok": True, "step": 9}),
    }


def test_an_order_is_repeated_until_its_result_has_come(stage: Stage) -> None:
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, [target(0), target(1)], REQUEST, timeout_s=60))
    assert len(stage.orders(2)) == 2
    assert len(stage.orders(2)) == 2
    stage.queue.take_results("n1", [OrderResult("c1-1", reply={"ok": True})])
    assert [order.order_id for order in stage.queue.orders_for("n1")] == ["c1-2"]
    stage.queue.take_results("n1", [OrderResult("c1-2", reply={"ok": True})])
    asking.result(PATIENCE_S)
    assert stage.queue.orders_for("n1") == ()


def test_an_agent_that_never_answers_is_named_and_its_order_expires(stage: Stage) -> None:
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, [target(0), target(1, "n2feedbeef")], REQUEST, timeout_s=5))
    stage.orders(2, "n1", "n2feedbeef")
    stage.time_is_up(5.1)
    assert stage.queue.orders_for("n1") == ()
    assert asking.result(PATIENCE_S) == {
        0: Reply(error="no answer from the agent on node7 within 5 s"),
        1: Reply(error="no answer from the agent on node n2feedbe within 5 s"),
    }


def test_a_node_cannot_answer_for_another(stage: Stage) -> None:
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, [target(0)], REQUEST, timeout_s=60))
    stage.orders(1)
    stage.queue.take_results("n2", [OrderResult("c1-1", reply={"ok": "a lie"})])
    stage.queue.take_results("n1", [OrderResult("c1-1", reply={"ok": True})])
    assert asking.result(PATIENCE_S) == {0: Reply(value={"ok": True})}


def test_the_first_result_of_an_order_counts_and_late_ones_are_dropped(stage: Stage) -> None:
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, [target(0)], REQUEST, timeout_s=60))
    stage.orders(1)
    stage.queue.take_results("n1", [OrderResult("c1-1", reply={"n": 1}), OrderResult("c1-1", reply={"n": 2})])
    assert asking.result(PATIENCE_S) == {0: Reply(value={"n": 1})}
    stage.queue.take_results("n1", [OrderResult("c1-1", reply={"n": 3}), OrderResult("never-given", error="x")])


def test_a_keeper_is_asked_by_its_process(stage: Stage) -> None:
    handle = {"pid": 55, "start_ticks": 66, "more": "of it"}
    asking = stage.ask(lambda: stage.queue.ask_launch(JOB, "n1", handle, {"command": "requeue"}, timeout_s=4))
    (order,) = stage.orders(1)
    assert (order.to, order.process, order.timeout_s) == (OrderTo.LAUNCH, ProcessId(55, 66), 2.0)
    stage.queue.take_results("n1", [OrderResult(order.order_id, reply={"error": "it is at 2", "kind": "changed"})])
    assert asking.result(PATIENCE_S) == Reply(error="it is at 2", kind="changed")


@pytest.mark.parametrize("handle", [{}, {"pid": 55}, {"pid": "55", "start_ticks": 66}])
def test_a_handle_that_names_no_process_is_an_error_at_once(stage: Stage, handle: Mapping[str, Any]) -> None:
    assert "is unknown" in str(stage.queue.ask_launch(JOB, "n1", handle, REQUEST, timeout_s=60).error)


def test_order_reply_is_truncated_and_stripped_of_control_characters() -> None:
    reply = reply_of(OrderResult("o", reply={"error": "\x1b[2Jno\n" + "x" * 1000, "kind": ["odd"]}))
    assert reply.error is not None
    assert reply.error.startswith(" [2Jno x")
    assert len(reply.error) == 300
    assert (reply.value, reply.kind) == (None, None)
    assert reply_of(OrderResult("o")).error is not None


def test_order_reply_gone_is_believed_only_from_the_kernel() -> None:
    assert reply_of(OrderResult("o", error="it has ended", kind=GONE)) == Reply(error="it has ended", kind=GONE)
    assert reply_of(OrderResult("o", reply={"error": "no", "kind": GONE})) == Reply(error="no")


def test_a_report_brings_results_and_its_reply_the_orders() -> None:
    clock = FakeClock()
    coordinator = Coordinator(wall_s=clock.unix_s, monotonic_s=clock.monotonic_s, incarnation="c1")

    def report(*results: OrderResult) -> ReportReply:
        return coordinator.report(NodeSummary("n1", "node7", 1, "i1", None, clock.unix_s(), order_results=results))

    assert report().orders == ()
    replies: Future[Reply] = Future()
    handle = {"pid": 55, "start_ticks": 66}
    threading.Thread(
        target=lambda: replies.set_result(coordinator.orders.ask_launch(JOB, "n1", handle, REQUEST, timeout_s=60)),
        daemon=True,
    ).start()
    orders = eventually(lambda: report().orders)
    assert report().orders == orders, "repeated until its result is here"
    assert report(OrderResult(orders[0].order_id, reply={"ok": True})).orders == ()
    assert replies.result(PATIENCE_S) == Reply(value={"ok": True})
    coordinator.engine_nodes([])
    assert report() == ReportReply(accepted=False, coordinator="c1")


ANSWERS = st.sampled_from(["answers", "refuses", "unreachable", "other node answers", "silent"])


@fewer(2)
@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.sampled_from(["n1", "n2", "n3"]), ANSWERS), min_size=1),
    st.integers(0, 999),
)
def test_every_ask_ends_with_one_reply_for_each_rank(ranks: dict[int, tuple[str, str]], seed: int) -> None:
    random = Random(seed)
    stage = Stage()
    targets = [target(rank, node_id) for rank, (node_id, _) in ranks.items()]
    asking = stage.ask(lambda: stage.queue.ask_ranks(JOB, targets, REQUEST, timeout_s=30))
    orders = stage.orders(len(ranks), "n1", "n2", "n3")
    random.shuffle(orders)
    for order in orders:
        rank = order.process.pid - 100
        node_id, how = ranks[rank]
        if how == "other node answers":
            node_id = f"not {node_id}"
        if how != "silent":
            said: dict[str, Any] = {"ok": rank} if how in ("answers", "other node answers") else {"error": "no"}
            result = OrderResult(order.order_id, reply=None if how == "unreachable" else said)
            stage.queue.take_results(node_id, [result] * random.choice([1, 2]))
    stage.time_is_up(30.5)
    replies = asking.result(PATIENCE_S)
    assert replies.keys() == ranks.keys()
    for rank, (_, how) in ranks.items():
        reply = replies[rank]
        assert (reply.value is None) != (reply.error is None)
        assert (reply.value == {"ok": rank}) == (how == "answers")
        assert ("no answer" in str(reply.error)) == (how in ("silent", "other node answers"))
    assert [stage.queue.orders_for(node) for node in ("n1", "n2", "n3")] == [(), (), ()]
