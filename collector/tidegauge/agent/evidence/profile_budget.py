"""Hourly limits on memory profiles: making one takes processor time of a node that trains. Their snapshots count to the
disk's limit (``budget``)."""

from __future__ import annotations

import resource
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.agent.evidence.budget import HOUR_S
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.units import format_duration
from tidegauge.core.wire import from_wire, to_wire

CPU_S_OF_TENANT = 600.0
"""In an hour: a sixth of one core, at low priority. A profile of 3,000 events takes 1.0 s: eight ranks can be profiled
every few minutes."""
CPU_S_OF_NODE = 1800.0
MIN_CPU_S = 0.25
"""What a recording counts at least: a file that is refused costs reading, too."""
READ_BEYOND = 1.5
"""What was asked for before the limit was reached is still read, up to so many times the limit."""


class _Spent(NamedTuple):
    at_s: float
    tenant: Tenant
    cpu_s: float


class ProfileBudget:
    """Counts the last hour's processor seconds, on a monotonic clock. Thread-safe."""

    def __init__(self, *, of_tenant_s: float = CPU_S_OF_TENANT, of_node_s: float = CPU_S_OF_NODE) -> None:
        self._of_tenant_s = of_tenant_s
        self._of_node_s = of_node_s
        self._lock = threading.Lock()
        self._spent: deque[_Spent] = deque()

    def state_dict(self) -> dict[str, Any]:
        with self._lock:
            return {"spent": to_wire(tuple(self._spent))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up an earlier agent's use. Raises ``ValueError`` or ``KeyError``."""
        spent = from_wire(tuple[_Spent, ...], state["spent"])
        with self._lock:
            self._spent.extend(spent)

    def spend(self, tenant: Tenant, cpu_s: float, now_s: float) -> None:
        with self._lock:
            self._spent.append(_Spent(now_s, tenant, max(cpu_s, MIN_CPU_S)))

    def can_read(self, tenant: Tenant, now_s: float) -> bool:
        """Whether a recording that is there may be made into a profile."""
        with self._lock:
            own, everyone = self._last_hour(tenant, now_s)
        return _sum(own) < READ_BEYOND * self._of_tenant_s and _sum(everyone) < READ_BEYOND * self._of_node_s

    def why_not(self, tenant: Tenant, now_s: float) -> str | None:
        """Why no rank of this tenant may be asked for a recording now, and when it may; ``None``: it may."""
        with self._lock:
            own, everyone = self._last_hour(tenant, now_s)
        of_tenant_s, of_node_s = (
            _wait_s(own, self._of_tenant_s, now_s),
            _wait_s(everyone, self._of_node_s, now_s),
        )
        if max(of_tenant_s, of_node_s) <= 0.0:
            return None
        whose = f"the ranks of {tenant}" if of_tenant_s >= of_node_s else "all ranks"
        limit_s = self._of_tenant_s if of_tenant_s >= of_node_s else self._of_node_s
        return (
            f"memory profiles of {whose} have had {format_duration(limit_s)} of processor time on this node within an "
            f"hour, which is the limit: again in {format_duration(max(of_tenant_s, of_node_s))}"
        )

    def _last_hour(self, tenant: Tenant, now_s: float) -> tuple[list[_Spent], list[_Spent]]:
        """Of the tenant, and of all."""
        while self._spent and now_s - self._spent[0].at_s >= HOUR_S:
            self._spent.popleft()
        return [one for one in self._spent if one.tenant == tenant], list(self._spent)


def cpu_s() -> float:
    """Processor seconds of this thread, and of the processes that this one waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + children.ru_utime + children.ru_stime


def _sum(spent: list[_Spent]) -> float:
    return sum(one.cpu_s for one in spent)


def _wait_s(spent: list[_Spent], most_s: float, now_s: float) -> float:
    """How long it is until less than ``most_s`` were spent in the last hour."""
    left_s, until_s = _sum(spent), now_s
    for one in spent:
        if left_s < most_s:
            break
        left_s -= one.cpu_s
        until_s = one.at_s + HOUR_S
    return until_s - now_s
