"""Orders from the coordinator to processes on a node, and their results; both travel with reports and replies.

Agents never listen: the coordinator answers an agent's report with orders, and the agent reports what came of them. An
order is repeated until its result has arrived, so what it asks for must be harmless when done twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Optional

from tidegauge.core.ids import ProcessId


class OrderTo(str, Enum):
    """The kind of process whose command socket an order is for."""

    RANK = "rank"
    """The probe in a training process (docs/probe.md)."""
    LAUNCH = "launch"
    """The ``tidegauge run`` that started a job (docs/run.md)."""


@dataclass(frozen=True)
class Order:
    """A request for one process's command socket, sent as one JSON object."""

    order_id: str
    to: OrderTo
    process: ProcessId
    uid: int
    """Who the process must belong to; the agent asks the kernel."""
    request: Mapping[str, Any]
    timeout_s: float


@dataclass(frozen=True)
class OrderResult:
    """The process's answer, or the reason why there is none."""

    order_id: str
    reply: Optional[Mapping[str, Any]] = None
    error: Optional[str] = None
    """For people. The process may have been reached all the same."""
    kind: Optional[str] = None
    """``GONE`` if the kernel says that the process has ended."""


GONE = "gone"
"""The kind of a reply for a process that has ended: it can neither be asked nor act any more."""


@dataclass(frozen=True)
class Reply:
    """A process's answer to a request; exactly one of ``value`` and ``error`` is set."""

    value: Optional[Mapping[str, Any]] = None
    error: Optional[str] = None
    """For people: no such process, no answer in time, or what the process itself said (``{"error": …}``)."""
    kind: Optional[str] = None
    """Beside an ``error``: ``GONE``, or the stable word of the process itself for it (``changed``), if it has one."""
