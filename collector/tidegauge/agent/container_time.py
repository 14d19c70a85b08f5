"""Processor time that a poll spends in containers, shared among tenants: who makes it costly waits, and nobody else.

What lies in a container is its user's: thousands of mounts, folders and names cost nothing to make. How long it takes
to go through them is measured, whatever they are, and counted to the tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from tidegauge.core.tenants import Tenant, itself

MAX_S_PER_TENANT_AND_POLL = 0.02
"""Of processor time, for each kind of work."""

Item = TypeVar("Item")
"""Hashable."""


class ContainerTime:
    """Of one kind of work. For one thread.

    What is begun is finished: who took longer than there was repays it at the polls that follow.
    """

    def __init__(self, whose: Callable[[Tenant], Tenant] = itself, *, cpu_s: Callable[[], float] = time.thread_time):
        """``whose``: the namespace of a pod. ``cpu_s``: processor time of this thread."""
        self._whose = whose
        self._cpu_s = cpu_s
        self._spent_s: dict[Tenant, float] = {}
        self._running: tuple[Tenant, float] | None = None
        """Whose time runs, and since when."""

    def begin_poll(self) -> None:
        """Everybody gets the time of one poll."""
        rest = ((tenant, spent_s - MAX_S_PER_TENANT_AND_POLL) for tenant, spent_s in self._spent_s.items())
        self._spent_s = {tenant: spent_s for tenant, spent_s in rest if spent_s > 0}

    def is_left(self, tenant: Tenant) -> bool:
        """Whether something may be begun for ``tenant`` in this poll."""
        whose = self._whose(tenant)
        spent_s = self._spent_s.get(whose, 0.0)
        if self._running is not None and self._running[0] == whose:
            spent_s += self._cpu_s() - self._running[1]
        return spent_s < MAX_S_PER_TENANT_AND_POLL

    @contextmanager
    def spent_by(self, tenant: Tenant) -> Iterator[None]:
        """Count the time until the block ends. In a block within another, all is the outer one's."""
        if self._running is not None:
            yield
            return
        whose = self._whose(tenant)
        self._running = whose, self._cpu_s()
        try:
            yield
        finally:
            _, began_s = self._running
            self._running = None
            self._spent_s[whose] = self._spent_s.get(whose, 0.0) + self._cpu_s() - began_s


class Turns(Generic[Item]):
    """Who waits longest comes first."""

    def __init__(self) -> None:
        self._turns: dict[Item, int] = {}
        self._turn = 0

    def in_order(self, items: Iterable[Item]) -> list[Item]:
        """All of ``items``; others are forgotten. Who never had a turn comes first."""
        self._turns = {item: self._turns.get(item, 0) for item in items}
        return sorted(self._turns, key=self._turns.__getitem__)

    def had(self, item: Item) -> None:
        """It was the turn of ``item``."""
        self._turn += 1
        self._turns[item] = self._turn
