"""Hourly limits on evidence: a job may write files all day, and each costs processor time and disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.wire import from_wire, to_wire

HOUR_S = 3600.0
PIECES_OF_TENANT = 60
"""In an hour: windows of eight ranks every half hour, each with two pieces of what is known before its search is over,
and a dozen requested snapshots."""
PIECES_OF_NODE = 240
STORED_BYTES_OF_TENANT = 512 << 20
"""In an hour, compressed. A snapshot has 0.1 to 3 MB."""


class _Spent(NamedTuple):
    at_s: float
    tenant: Tenant
    stored_bytes: int


class EvidenceBudget:
    """Counts the last hour's use, on a monotonic clock. One thread calls ``take`` and ``give_back``, another may call
    ``store``."""

    def __init__(self) -> None:
        self._pieces: deque[_Spent] = deque()
        self._stored: deque[_Spent] = deque()

    def state_dict(self) -> dict[str, Any]:
        return {"pieces": to_wire(tuple(self._pieces)), "stored": to_wire(tuple(self._stored))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up an earlier agent's use. Raises ``ValueError`` or ``KeyError``."""
        pieces, stored = (from_wire(tuple[_Spent, ...], state[name]) for name in ("pieces", "stored"))
        self._pieces.extend(pieces)
        self._stored.extend(stored)

    def take(self, tenant: Tenant, now_s: float) -> bool:
        """Take one piece, if there is one left for this tenant."""
        _forget(self._pieces, now_s)
        of_tenant = sum(spent.tenant == tenant for spent in self._pieces)
        if of_tenant >= PIECES_OF_TENANT or len(self._pieces) >= PIECES_OF_NODE:
            return False
        self._pieces.append(_Spent(now_s, tenant, 0))
        return True

    def give_back(self, tenant: Tenant) -> None:
        """Of what the tenant took last, one piece that turned out to be none."""
        for at in range(len(self._pieces) - 1, -1, -1):
            if self._pieces[at].tenant == tenant:
                del self._pieces[at]
                return

    def store(self, tenant: Tenant, stored_bytes: int, now_s: float) -> bool:
        """Take bytes of the store, if this tenant has them left."""
        _forget(self._stored, now_s)
        of_tenant = sum(spent.stored_bytes for spent in self._stored if spent.tenant == tenant)
        if of_tenant + stored_bytes > STORED_BYTES_OF_TENANT:
            return False
        self._stored.append(_Spent(now_s, tenant, stored_bytes))
        return True


def _forget(spent: deque[_Spent], now_s: float) -> None:
    while spent and now_s - spent[0].at_s >= HOUR_S:
        spent.popleft()
