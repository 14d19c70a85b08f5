"""Time limits per tenant: a look shares its time among tenants, so that one with costly files delays only itself.

Thousands of mounts, folders and names cost their user nothing to create. The time to go through them is
measured and counted to the tenant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from tidegauge.core.jobs.tenants import Tenant, itself

MAX_CPU_S = 0.02
"""Processor time for a tenant, look and kind of work."""
WALL_SHARE = 0.2
"""Part of elapsed time that counts as processor time, for waits on file systems and locks. On a busy machine time
elapses for everybody."""

Item = TypeVar("Item")
"""Hashable."""


class TenantTime:
    """The time of one kind of work. For one thread.

    Work that has begun is finished: a tenant that overran repays it at the following looks.
    """

    def __init__(
        self,
        whose: Callable[[Tenant], Tenant] = itself,
        *,
        max_cpu_s: float = MAX_CPU_S,
        wall_share: float = WALL_SHARE,
        cpu_s: Callable[[], float] = time.thread_time,
        wall_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``whose``: the namespace of a pod. ``cpu_s``: processor time of this thread."""
        self._whose = whose
        self._max_s = max_cpu_s
        self._wall_share = wall_share
        self._cpu_s = cpu_s
        self._wall_s = wall_s
        self._spent_s: dict[Tenant, float] = {}
        self._running: tuple[Tenant, float, float] | None = None
        """The tenant whose time runs, with processor time and clock at its start."""

    def begin(self, max_cpu_s: float | None = None) -> None:
        """Give every tenant the time of one look, from now on ``max_cpu_s`` if that is given."""
        self._max_s = self._max_s if max_cpu_s is None else max_cpu_s
        rest = ((tenant, spent_s - self._max_s) for tenant, spent_s in self._spent_s.items())
        self._spent_s = {tenant: spent_s for tenant, spent_s in rest if spent_s > 0}

    def is_left(self, tenant: Tenant) -> bool:
        """Whether something may be begun for ``tenant`` in this look."""
        whose = self._whose(tenant)
        spent_s = self._spent_s.get(whose, 0.0)
        if self._running is not None and self._running[0] == whose:
            spent_s += self._since_it_runs_s()
        return spent_s < self._max_s

    def spent_by(self, tenant: Tenant) -> _Block:
        """Count the time until the block ends. In a block within another, all is the outer one's."""
        return _Block(self, tenant)

    def _begin_block(self, tenant: Tenant) -> bool:
        """Whether it is no block within another."""
        if self._running is not None:
            return False
        self._running = self._whose(tenant), self._cpu_s(), self._wall_s()
        return True

    def _end_block(self) -> None:
        if self._running is not None:
            whose = self._running[0]
            self._spent_s[whose] = self._spent_s.get(whose, 0.0) + self._since_it_runs_s()
            self._running = None

    def _since_it_runs_s(self) -> float:
        if self._running is None:
            return 0.0
        _, cpu_s, wall_s = self._running
        return max(self._cpu_s() - cpu_s, self._wall_share * (self._wall_s() - wall_s))


class _Block:
    """A context manager of a poll's innermost loop; a generator would take twice the time."""

    __slots__ = ("_is_outer", "_tenant", "_time")

    def __init__(self, time: TenantTime, tenant: Tenant) -> None:
        self._time = time
        self._tenant = tenant
        self._is_outer = False

    def __enter__(self) -> None:
        self._is_outer = self._time._begin_block(self._tenant)

    def __exit__(self, *_: object) -> None:
        if self._is_outer:
            self._time._end_block()


class FairQueue(Generic[Item]):
    """Orders items by waiting time, the longest first."""

    def __init__(self) -> None:
        self._turns: dict[Item, int] = {}
        self._turn = 0

    def in_order(self, items: Iterable[Item]) -> list[Item]:
        """``items``, those without a turn first; others are forgotten."""
        self._turns = {item: self._turns.get(item, 0) for item in items}
        return sorted(self._turns, key=self._turns.__getitem__)

    def had(self, item: Item) -> None:
        self._turn += 1
        self._turns[item] = self._turn
