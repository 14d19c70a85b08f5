"""Carries out the coordinator's orders on this node: each once, several in parallel; keeps results until confirmed.

Every reply repeats an order until the coordinator has its result, so most that arrive are repetitions. Users take
turns, so that one whose processes are silent delays nobody else's orders.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from tidegauge.agent.processes.command_socket import NotAskedError, ProcessSocket, ask
from tidegauge.core.ids import ProcessId
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import Order, OrderResult, OrderTo

_log = logging.getLogger(__name__)

MAX_THREADS = 16
"""They mostly wait: a rank that is stopped in a debugger occupies one for the whole time of its order."""
MAX_THREADS_PER_TENANT = MAX_THREADS // 2
"""Many ranks of one job may be silent at once. Fewer than this, and they do not hold up other jobs of their user."""
MAX_REMEMBERED = 4096
"""Orders whose result the coordinator has, by id: a late repetition is not carried out again. Ids are never reused, and
those that are forgotten are older than any reply that can still arrive."""

Sockets = Mapping[tuple[OrderTo, ProcessId], ProcessSocket]
"""Sockets of the processes of this node that take orders, by an order's ``to`` and ``process``."""


def carry_out(order: Order, sockets: Sockets) -> OrderResult:
    """Ask the process that the order names, if this node knows it and the kernel confirms its owner."""
    to = sockets.get((order.to, order.process))
    if to is None:
        what = "rank" if order.to is OrderTo.RANK else "tidegauge run"
        return OrderResult(order.order_id, error=f"no {what} with pid {order.process.pid} on this node: it has ended")
    if to.uid != order.uid:
        return OrderResult(
            order.order_id,
            error=f"pid {order.process.pid} belongs to uid {to.uid}, not to {order.uid}: nothing was sent",
        )
    try:
        return OrderResult(order.order_id, reply=ask(to, order.request, timeout_s=order.timeout_s))
    except NotAskedError as error:
        return OrderResult(order.order_id, error=str(error))


class _Waiting(NamedTuple):
    order: Order
    tenant: Tenant
    taken_s: float


class OrderCarrier:
    """Runs ``carry_out`` in daemon threads, which call ``announce`` after each result. Thread-safe."""

    def __init__(
        self,
        carry_out: Callable[[Order], OrderResult],
        *,
        announce: Callable[[], None],
        tenant_of: Callable[[Order], Tenant] = lambda order: Tenant(order.uid),
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carry_out = carry_out
        self._announce = announce
        self._tenant_of = tenant_of
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._under_way: set[str] = set()
        self._results: dict[str, OrderResult] = {}
        """Not known to the coordinator yet."""
        self._over: dict[str, None] = {}
        """Known to the coordinator, oldest first."""
        self._waiting: dict[Tenant, deque[_Waiting]] = {}
        """Orders that no thread has yet, by tenant; the one whose turn is next comes first."""
        self._busy: Counter[Tenant] = Counter()
        """Threads that carry out an order, by its tenant."""
        self._threads = 0

    def take(self, orders: Collection[Order]) -> None:
        """Take all current orders: new ones begin, results that the coordinator has are forgotten."""
        wanted = {order.order_id for order in orders}
        now_s = self._monotonic_s()
        with self._changed:
            for order_id in [order_id for order_id in self._results if order_id not in wanted]:
                del self._results[order_id]
                self._over[order_id] = None
            while len(self._over) > MAX_REMEMBERED:
                del self._over[next(iter(self._over))]
            for order in orders:
                if not any(order.order_id in known for known in (self._under_way, self._results, self._over)):
                    self._under_way.add(order.order_id)
                    tenant = self._tenant_of(order)
                    self._waiting.setdefault(tenant, deque()).append(_Waiting(order, tenant, now_s))
            wanted_threads = min(MAX_THREADS, len(self._under_way))
            while self._threads < wanted_threads:
                self._threads += 1
                threading.Thread(target=self._work, name=f"tidegauge-orders-{self._threads}", daemon=True).start()
            self._changed.notify_all()

    def results(self) -> tuple[OrderResult, ...]:
        """Results for the next report: those that the coordinator may not have."""
        with self._changed:
            return tuple(self._results.values())

    def _work(self) -> None:
        while True:
            waiting = self._next()
            result = self._result_of(waiting)
            with self._changed:
                self._busy -= Counter([waiting.tenant])
                self._under_way.discard(result.order_id)
                self._results[result.order_id] = result
                self._changed.notify_all()
            self._announce()

    def _next(self) -> _Waiting:
        """The oldest order of the tenant whose turn it is, as soon as there is one."""
        with self._changed:
            while (tenant := self._whose_turn()) is None:
                self._changed.wait()
            orders = self._waiting.pop(tenant)
            waiting = orders.popleft()
            if orders:
                self._waiting[tenant] = orders  # at the end of the line
            self._busy[tenant] += 1
            return waiting

    def _whose_turn(self) -> Tenant | None:
        return next((tenant for tenant in self._waiting if self._busy[tenant] < MAX_THREADS_PER_TENANT), None)

    def _result_of(self, waiting: _Waiting) -> OrderResult:
        order = waiting.order
        if self._monotonic_s() - waiting.taken_s > order.timeout_s:
            return OrderResult(order.order_id, error="not sent: slow processes before it used up the time")
        try:
            return self._carry_out(order)
        except Exception as error:
            _log.exception("order %s to pid %d failed", order.order_id, order.process.pid)
            return OrderResult(order.order_id, error=f"the agent failed: {type(error).__name__}")
