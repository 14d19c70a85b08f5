from __future__ import annotations

import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import fewer
from fake_node import FakeClock, FakeNode
from tidegauge.agent import orders
from tidegauge.agent.orders import MAX_REMEMBERED, MAX_THREADS, MAX_THREADS_PER_TENANT, OrderCarrier, carry_out
from tidegauge.agent.processes.command_socket import ProcessSocket
from tidegauge.agent.run_dirs.folders import HostRunDir, UserFolder
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderResult, OrderTo

PATIENCE_S = 60.0
PROCESS = ProcessId(4242, 777)


def order(order_id: str = "o1", *, to: OrderTo = OrderTo.RANK, uid: int = 1000, timeout_s: float = 10.0) -> Order:
    return Order(order_id, to, PROCESS, uid, {"command": "ping"}, timeout_s)


class Stage:
    """A carrier whose processes answer at once, unless they are held, and the count of what they were asked."""

    def __init__(
        self,
        clock: FakeClock | None = None,
        *,
        silent_uids: Sequence[int] = (),
        tenant_of: Callable[[Order], Tenant] = lambda order: Tenant(order.uid),
    ) -> None:
        """``silent_uids``: whose processes answer when the event in ``silent`` is set, and not before."""
        self.asked: Counter[str] = Counter()
        self.held = threading.Event()
        self.held.set()
        self.silent = {uid: threading.Event() for uid in silent_uids}
        self._announced: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.begun: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.carrier = OrderCarrier(
            self._carry_out,
            announce=lambda: self._announced.put(None),
            tenant_of=tenant_of,
            monotonic_s=(clock or FakeClock()).monotonic_s,
        )

    def _carry_out(self, order: Order) -> OrderResult:
        self.asked[order.order_id] += 1
        self.begun.put(order.order_id)
        assert self.silent.get(order.uid, self.held).wait(PATIENCE_S)
        return OrderResult(order.order_id, reply={"ok": True})

    def wait_for(self, results: int) -> None:
        for _ in range(results):
            self._announced.get(timeout=PATIENCE_S)

    def next_begun(self, count: int) -> list[str]:
        return [self.begun.get(timeout=PATIENCE_S) for _ in range(count)]

    def results(self) -> dict[str, OrderResult]:
        return {result.order_id: result for result in self.carrier.results()}


def test_an_order_is_carried_out_once_however_often_it_is_repeated() -> None:
    stage = Stage()
    for _ in range(3):
        stage.carrier.take([order()])
    stage.wait_for(1)
    stage.carrier.take([order()])
    assert stage.asked == {"o1": 1}
    assert stage.results() == {"o1": OrderResult("o1", reply={"ok": True})}


def test_a_result_is_told_until_the_order_is_repeated_no_more() -> None:
    stage = Stage()
    stage.carrier.take([order()])
    stage.wait_for(1)
    stage.carrier.take([order()])
    assert stage.results().keys() == {"o1"}
    stage.carrier.take([])
    assert stage.results() == {}


def test_a_late_repetition_of_an_order_that_is_over_does_nothing() -> None:
    stage = Stage()
    stage.carrier.take([order()])
    stage.wait_for(1)
    stage.carrier.take([])
    stage.carrier.take([order()])
    stage.carrier.take([order(), order("o2")])
    stage.wait_for(1)
    assert stage.asked == {"o1": 1, "o2": 1}


def test_order_carrier_begins_max_threads_orders_at_once_and_the_rest_later() -> None:
    stage = Stage()
    stage.held.clear()
    stage.carrier.take([order(f"o{n}", uid=n) for n in range(MAX_THREADS + 2)])
    assert set(stage.next_begun(MAX_THREADS)) == {f"o{n}" for n in range(MAX_THREADS)}
    stage.held.set()
    stage.wait_for(MAX_THREADS + 2)
    assert len(stage.results()) == MAX_THREADS + 2


def test_an_order_whose_time_is_up_before_its_turn_is_not_sent() -> None:
    clock = FakeClock()
    stage = Stage(clock)
    stage.held.clear()
    slow = [order(f"o{n}", uid=n) for n in range(MAX_THREADS)]
    stage.carrier.take(slow)
    stage.next_begun(MAX_THREADS)
    stage.carrier.take([*slow, order("late", timeout_s=5)])
    clock.pass_s(5.5)
    stage.held.set()
    stage.wait_for(MAX_THREADS + 1)
    assert stage.asked["late"] == 0
    error = stage.results()["late"].error
    assert error is not None
    assert "not sent" in error


def test_silent_processes_of_one_user_do_not_hold_up_another_users() -> None:
    stage = Stage(silent_uids=[1000])
    silent = [order(f"o{n}", uid=1000) for n in range(2 * MAX_THREADS)]
    stage.carrier.take(silent)
    assert set(stage.next_begun(MAX_THREADS_PER_TENANT)) == {f"o{n}" for n in range(MAX_THREADS_PER_TENANT)}
    healthy = [order(f"h{n}", uid=2000) for n in range(2 * MAX_THREADS)]
    stage.carrier.take([*silent, *healthy])
    stage.wait_for(len(healthy))
    assert stage.results().keys() == {one.order_id for one in healthy}
    assert set(stage.next_begun(len(healthy))) == stage.results().keys(), "no more of the silent ones were begun"
    stage.silent[1000].set()
    stage.wait_for(len(silent))
    assert stage.asked == {one.order_id: 1 for one in (*silent, *healthy)}


def test_some_silent_processes_do_not_hold_up_the_others_of_their_user() -> None:
    stage = Stage()
    silent = [order(f"s{n}", uid=1000) for n in range(MAX_THREADS_PER_TENANT - 1)]
    stage.held.clear()
    stage.carrier.take(silent)
    stage.next_begun(len(silent))
    stage.silent[1000] = threading.Event()
    stage.silent[1000].set()
    healthy = [order(f"h{n}", uid=1000) for n in range(20)]
    stage.carrier.take([*silent, *healthy])
    stage.wait_for(len(healthy))
    assert stage.results().keys() == {one.order_id for one in healthy}
    stage.held.set()
    stage.wait_for(len(silent))


def test_pods_take_turns_though_their_users_have_one_uid() -> None:
    stage = Stage(silent_uids=[0], tenant_of=lambda order: Tenant(None, order.order_id[0]))
    silent = [order(f"s{n}", uid=0) for n in range(2 * MAX_THREADS)]
    stage.carrier.take(silent)
    stage.next_begun(MAX_THREADS_PER_TENANT)
    stage.carrier.take([*silent, order("h", uid=0)])
    assert stage.next_begun(1) == ["h"]
    stage.silent[0].set()
    stage.wait_for(len(silent) + 1)


def test_users_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "MAX_THREADS", 4)
    monkeypatch.setattr(orders, "MAX_THREADS_PER_TENANT", 2)
    busy = [order("b0", uid=1), order("b1", uid=1), order("b2", uid=2), order("b3", uid=3)]
    stage = Stage(silent_uids=[1, 2, 3])
    stage.carrier.take(busy)
    stage.next_begun(4)
    waiting = [order(f"many{n}", uid=10) for n in range(3)] + [order("one", uid=11), order("other", uid=12)]
    stage.carrier.take([*busy, *waiting, order("b4", uid=1)])
    stage.silent[3].set()
    assert stage.next_begun(len(waiting)) == ["many0", "one", "other", "many1", "many2"]
    stage.silent[1].set()
    assert stage.next_begun(1) == ["b4"], "the user's own have to end first"
    stage.silent[2].set()
    stage.wait_for(len(busy) + len(waiting) + 1)


def test_a_slip_of_ours_is_a_result_too(caplog: pytest.LogCaptureFixture) -> None:
    announced = threading.Event()

    def slip(_: Order) -> OrderResult:
        raise ZeroDivisionError

    carrier = OrderCarrier(slip, announce=announced.set)
    carrier.take([order()])
    assert announced.wait(PATIENCE_S)
    assert carrier.results() == (OrderResult("o1", error="the agent failed: ZeroDivisionError"),)


def test_order_carrier_bounds_remembered_orders() -> None:
    stage = Stage()
    firsts = range(1, MAX_REMEMBERED + 100, 500)
    # The oldest alone: of what is carried out together nobody knows what ends first.
    for numbers in (range(1), *(range(first, first + 500) for first in firsts)):
        batch = [order(f"o{n}") for n in numbers]
        stage.carrier.take(batch)
        stage.wait_for(len(batch))
    stage.carrier.take([])
    stage.carrier.take([order("o0"), order("o4400")])
    stage.wait_for(1)
    assert (stage.asked["o0"], stage.asked["o4400"]) == (2, 1), "the oldest is forgotten, the newest is not"


orders_wanted = st.lists(st.lists(st.sampled_from("abcdef"), unique=True), max_size=12)


@fewer(2)
@given(orders_wanted)
def test_whatever_is_wanted_when_an_order_is_carried_out_at_most_once(replies: Sequence[Sequence[str]]) -> None:
    stage = Stage()
    seen: set[str] = set()
    for wanted in replies:
        stage.carrier.take([order(order_id) for order_id in wanted])
        stage.wait_for(len(set(wanted) - seen))
        assert stage.results().keys() >= set(wanted) - seen, "a new order has its result"
        assert stage.results().keys() <= set(wanted), "nothing is told of orders that nobody waits for"
        seen |= set(wanted)
    assert stage.asked == dict.fromkeys(seen, 1)


def test_a_process_that_is_not_known_here_is_not_asked() -> None:
    assert "no rank with pid 4242" in str(carry_out(order(), {}).error)
    assert "no tidegauge run with pid 4242" in str(carry_out(order(to=OrderTo.LAUNCH), {}).error)


def test_a_process_of_another_user_than_the_orders_is_not_asked(tmp_path: Path) -> None:
    sockets = {
        (OrderTo.RANK, PROCESS): ProcessSocket(UserFolder(HostRunDir(tmp_path), 1001), 1001, "4242-777.sock", PROCESS)
    }
    assert "belongs to uid 1001, not to 1000" in str(carry_out(order(uid=1000), sockets).error)
    assert "has no command socket" in str(carry_out(order(uid=1001), sockets).error)


def test_the_agent_knows_the_sockets_of_living_ranks_only(tmp_path: Path) -> None:
    node = FakeNode(tmp_path / "run")
    rank = node.start_rank()
    ours = order(uid=rank.uid)
    assert "no rank" in str(node.agent.carry_out(ours).error), "before it is found"
    rank.record()
    node.poll()
    assert "has no command socket" in str(node.agent.carry_out(ours).error)
    assert "belongs to uid" in str(node.agent.carry_out(order(uid=rank.uid + 1)).error)
    node.end(rank)
    node.poll()
    assert "no rank" in str(node.agent.carry_out(ours).error)
