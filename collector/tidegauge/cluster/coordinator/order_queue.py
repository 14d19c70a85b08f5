"""Orders from the coordinator's actions to processes on nodes: they wait here for the agents' reports and answers.

Implements the hooks' ``ports.ProcessCommands``. Nothing is kept on disk: a caller without an answer asks again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents.actions import RankTarget
from tidegauge.core.orders import GONE, Order, OrderResult, OrderTo, Reply
from tidegauge.core.text import one_line

TRIP_S = 3.0
"""The part of a timeout for the way there and back. An agent receives an order with the reply to its next report but
one (two periods of a second) and reports the result at once. An agent that reports less often gets that much longer for
its first order, and then reports every second."""
TALK_S = 30.0
"""For this long after an order the node's agent reports as often as its setting says: more orders follow, as during a
checkpoint."""
MAX_TEXT_CHARS = 300
"""Characters of a process's own words that are passed on: it may be anybody's."""

Targets = Sequence[tuple[ProcessId, str]]
"""Processes, and the node that each was on once."""


@dataclass(eq=False)
class _Asked:
    """An order with a waiting caller."""

    order: Order
    node_id: str
    deadline_s: float
    reply: Reply | None = None


class OrderQueue:
    """Thread-safe. ``incarnation`` makes order ids unique to this coordinator; ``hostname_of`` names a node for people,
    ``expected_every_s`` gives the report period of its agent (0: that of its setting), ``where_now`` gives the present
    node of each process of a job. None of them may wait for the queue."""

    def __init__(
        self,
        *,
        incarnation: str,
        hostname_of: Callable[[str], str],
        expected_every_s: Callable[[str], float],
        where_now: Callable[[JobKey, Targets], Sequence[str]],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._incarnation = incarnation
        self._hostname_of = hostname_of
        self._expected_every_s = expected_every_s
        self._where_now = where_now
        self._monotonic_s = monotonic_s
        self._changed = threading.Condition()
        self._open: dict[str, dict[str, _Asked]] = {}
        """Orders that somebody waits for, by node and id."""
        self._talked_s: dict[str, float] = {}
        """When each node was last given an order."""
        self._last_number = 0

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        """Send one request to several ranks at once; replies by global rank, one for each. Blocks, never raises."""
        where = [(rank.node_id, OrderTo.RANK, rank.process) for rank in ranks]
        replies = self._ask(job, where, request, timeout_s=timeout_s)
        return {rank.rank: reply for rank, reply in zip(ranks, replies)}

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        """Send a request to the keeper that ``handle`` (``pid``, ``start_ticks``) names. Blocks, never raises."""
        pid, start_ticks = handle.get("pid"), handle.get("start_ticks")
        if not isinstance(pid, int) or not isinstance(start_ticks, int):
            return Reply(error="the tidegauge run that runs the job is unknown")
        where = [(node_id, OrderTo.LAUNCH, ProcessId(pid, start_ticks))]
        (reply,) = self._ask(job, where, request, timeout_s=timeout_s)
        return reply

    def orders_for(self, node_id: str) -> tuple[Order, ...]:
        """Orders for the node's agent that have no result and are not overdue, oldest first."""
        now_s = self._monotonic_s()
        with self._changed:
            waiting = self._open.get(node_id)
            if waiting is None:
                return ()
            return tuple(one.order for one in waiting.values() if one.reply is None and now_s < one.deadline_s)

    def is_talking_to(self, node_id: str, *, now_s: float) -> bool:
        """Whether the node has an order, or had one so lately (monotonic time) that more may follow."""
        with self._changed:
            talked_s = self._talked_s.get(node_id)
            return node_id in self._open or (talked_s is not None and now_s - talked_s <= TALK_S)

    def take_results(self, node_id: str, results: Collection[OrderResult]) -> None:
        """Take results from the node's agent; those without a waiting caller, or for another node, are dropped."""
        if not results:
            return
        with self._changed:
            waiting = self._open.get(node_id, {})
            for result in results:
                asked = waiting.get(result.order_id)
                if asked is not None and asked.reply is None:
                    asked.reply = reply_of(result)
            self._changed.notify_all()

    def _ask(
        self,
        job: JobKey,
        where: Collection[tuple[str, OrderTo, ProcessId]],
        request: Mapping[str, Any],
        *,
        timeout_s: float,
    ) -> list[Reply]:
        node_ids = self._where_now(job, [(process, node_id) for node_id, _, process in where])
        silent_s = max(map(self._expected_every_s, set(node_ids)), default=0.0)
        deadline_s = self._monotonic_s() + timeout_s + silent_s
        with self._changed:
            asked = [
                _Asked(self._order(to, process, job.uid, request, timeout_s), node_id, deadline_s)
                for node_id, (_, to, process) in zip(node_ids, where)
            ]
            self._put(asked)
            try:
                while any(one.reply is None for one in asked):
                    left_s = deadline_s - self._monotonic_s()
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
            finally:
                self._take_back(asked)
        return [one.reply or self._no_answer(one.node_id, timeout_s) for one in asked]

    def _put(self, asked: Iterable[_Asked]) -> None:
        now_s = self._monotonic_s()
        # Also of nodes that are gone, which nobody asks about any more.
        self._talked_s = {node_id: at_s for node_id, at_s in self._talked_s.items() if now_s - at_s <= TALK_S}
        for one in asked:
            self._open.setdefault(one.node_id, {})[one.order.order_id] = one
            self._talked_s[one.node_id] = now_s

    def _take_back(self, asked: Iterable[_Asked]) -> None:
        for one in asked:
            waiting = self._open[one.node_id]
            del waiting[one.order.order_id]
            if not waiting:
                del self._open[one.node_id]

    def _order(self, to: OrderTo, process: ProcessId, uid: int, request: Mapping[str, Any], timeout_s: float) -> Order:
        self._last_number += 1
        return Order(
            order_id=f"{self._incarnation}-{self._last_number}",
            to=to,
            process=process,
            uid=uid,
            request=request,
            timeout_s=max(timeout_s - TRIP_S, timeout_s / 2),
        )

    def _no_answer(self, node_id: str, timeout_s: float) -> Reply:
        host = self._hostname_of(node_id) or f"node {node_id[:8]}"
        return Reply(error=f"no answer from the agent on {host} within {timeout_s:g} s")


def reply_of(result: OrderResult) -> Reply:
    """The reply that an order result holds; an error of the process is an error like any other."""
    if result.error is not None:
        return Reply(error=result.error, kind=result.kind)
    if result.reply is None:
        return Reply(error="the agent reported neither an answer nor an error")
    if "error" in result.reply:
        kind = result.reply.get("kind")
        stable = isinstance(kind, str) and kind != GONE  # who answers has not ended, whatever it says
        return Reply(error=_text(result.reply["error"]), kind=_text(kind) if stable else None)
    return Reply(value=result.reply)


def _text(said: object) -> str:
    """A process's text as one bounded line, without control characters."""
    return one_line(str(said), MAX_TEXT_CHARS, replacement=" ")
