"""Keeps exactly one node agent on every alive node: compares, and creates or replaces agents, every second.

Names in the engine ensure "at most one" (an agent is created under its node's name, or found there); this loop ensures
"at least one" through joins, losses and restarts, and forgets nodes that are gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.coordinator.report_pacing import stale_limit_s
from tidegauge.cluster.views import EngineNode

log = logging.getLogger(__name__)

FRESH_S = 5.0
"""An agent that reported within this needs nothing. Five report periods; one that reports less often may miss as many
as make it stale (``report_pacing``)."""
RETRY_S = 5.0
"""Between two attempts on one node: creating an actor takes 1-2 s, more on a busy host."""
WEDGED_S = 60.0
"""An agent without a report for this long is replaced. Long, because a host under memory pressure stalls for many
seconds, and a new agent has to begin with what the old one saved."""
LATE_TICK_S = 15.0
"""Where ticks are further apart than this, the head itself was stopped, or its engine away: agents could not report."""


class Engine(Protocol):
    """The calls of Ray that the loop needs. Each may raise ``EngineError`` while the engine is away: try again."""

    def alive_nodes(self) -> tuple[EngineNode, ...]:
        """All nodes that are alive in the engine."""

    def ensure_agent(self, node_id: str) -> None:
        """Create the node's agent unless it exists already. Does not wait for it."""

    def hold_agent(self, node_id: str) -> None:
        """Put the agent's idle main thread to sleep (see ``ray_engine``). Does not wait."""

    def end_agent(self, node_id: str) -> None:
        """End the node's agent for good, so that it can be created anew."""


class EngineError(Exception):
    """The engine did not do as asked; worth trying again."""


@dataclass
class _Care:
    """The latest actions on one node, on the monotonic clock."""

    since_s: float
    """When its agent last reported, or could begin to."""
    tried_s: float | None = None
    held: str | None = None


class AgentReconciler:
    """Call ``tick`` about every second: it checks all nodes once."""

    def __init__(self, engine: Engine, coordinator: Coordinator, *, monotonic_s: Callable[[], float]) -> None:
        self._engine = engine
        self._coordinator = coordinator
        self._monotonic_s = monotonic_s
        self._care: dict[str, _Care] = {}
        self._ticked_s = float("-inf")

    def tick(self) -> None:
        """Raises ``EngineError`` when the nodes cannot be listed; trouble with one node is logged and tried again."""
        nodes = self._engine.alive_nodes()
        self._coordinator.engine_nodes(nodes)
        alive = {node.node_id for node in nodes}
        self._care = {node_id: care for node_id, care in self._care.items() if node_id in alive}
        now_s = self._monotonic_s()
        was_away, self._ticked_s = now_s - self._ticked_s > LATE_TICK_S, now_s
        for node in nodes:
            care = self._care.setdefault(node.node_id, _Care(since_s=now_s))
            if was_away:
                care.since_s = now_s
            try:
                self._look_after(node, care, now_s)
            except EngineError as error:
                log.warning("the agent on %s: %s; retrying in %.0f s", node.hostname, error, RETRY_S)

    def _look_after(self, node: EngineNode, care: _Care, now_s: float) -> None:
        heard = self._coordinator.last_heard(node.node_id)
        every_s = self._coordinator.expected_every_s(node.node_id)
        if heard is not None and now_s - heard[0] < stale_limit_s(every_s, at_least_s=FRESH_S):
            if care.held != heard[1]:
                care.held = heard[1]
                self._engine.hold_agent(node.node_id)
            care.since_s = now_s
            return
        if care.tried_s is not None and now_s - care.tried_s < RETRY_S:
            return
        care.tried_s = now_s
        if now_s - care.since_s > WEDGED_S + every_s:
            log.warning("the agent on %s has not reported for %.0f s: replacing it", node.hostname, WEDGED_S + every_s)
            care.since_s = now_s
            self._engine.end_agent(node.node_id)
        self._engine.ensure_agent(node.node_id)
