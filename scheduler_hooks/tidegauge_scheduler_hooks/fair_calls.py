"""Whose decision gets the next call: tenants take turns. Pure but for what it remembers of turns."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge_scheduler_hooks.carry_out_steps import CarryOutTimes

MAX_REMEMBERED = 2_000
"""Tenants of lanes whose latest turn is known. Of more, those served longest ago are forgotten: they come
first anyway."""


class _Queue(NamedTuple):
    """What shares a number of calls at once. A message may hang in a chat and in a scheduler, and must not take the
    place of a checkpoint: messages have a lane of their own, whatever scheduler their job is of, with evidence."""

    scheduler: str | None
    """``None``: messages and evidence."""

    def most(self, times: CarryOutTimes) -> int:
        return times.messages_at_once if self.scheduler is None else times.calls_per_scheduler


class _Turn(NamedTuple):
    """Who waits where."""

    lane: _Queue
    tenant: Tenant

    @classmethod
    def of(cls, decision: Decision) -> _Turn:
        is_aside = decision.action in (ActionKind.NOTIFY, ActionKind.SNAPSHOT)
        lane = _Queue(None if is_aside else decision.target.scheduler)
        return cls(lane, tenant_of(decision.target.job))


class FairCalls:
    """Jobs may let calls hang for as long as these last. So in each lane comes first who has the fewest calls under way
    there, of those who was served longest ago, and the last call is for somebody who has not all the others."""

    def __init__(self, times: CarryOutTimes) -> None:
        self._times = times
        self._served: dict[_Turn, int] = {}
        """When each was served last, as a number that grows; the one served longest ago first."""
        self._now = itertools.count(1)

    def __len__(self) -> int:
        return len(self._served)

    def next(self, waiting: Iterable[DecisionRecord], busy: Iterable[Decision]) -> Iterator[DecisionRecord]:
        """What is to be handed out of ``waiting`` while ``busy`` are under way. A tenant's own go in the order given,
        and so do tenants who are alike otherwise."""
        lanes: dict[_Queue, dict[_Turn, deque[DecisionRecord]]] = {}
        for record in waiting:
            turn = _Turn.of(record.decision)
            lanes.setdefault(turn.lane, {}).setdefault(turn, deque()).append(record)
        calls = Counter(map(_Turn.of, busy))
        for lane, queues in lanes.items():
            most = lane.most(self._times)
            free = most - sum(count for turn, count in calls.items() if turn.lane == lane)
            for _ in range(free):
                able = [turn for turn, queue in queues.items() if queue and calls[turn] < max(1, most - 1)]
                if not able:
                    break
                turn = min(able, key=lambda turn: (calls[turn], self._served.get(turn, 0)))
                calls[turn] += 1
                self._note(turn)
                yield queues[turn].popleft()

    def _note(self, turn: _Turn) -> None:
        self._served.pop(turn, None)
        self._served[turn] = next(self._now)
        if len(self._served) > MAX_REMEMBERED:
            del self._served[next(iter(self._served))]
