"""A node's agent at work: polling, serving ``/metrics``, reporting to the coordinator. No Ray."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Protocol

from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.agent.runner import AgentRunner, Reporter
from tidegauge.core.views import NodeView
from tidegauge.settings import Settings

log = logging.getLogger(__name__)


class MetricsServerPort(Protocol):
    """``tidegauge_exporter.metrics.server.MetricsServer``."""

    def start(self) -> None:
        """Raises ``OSError`` if the port is taken."""

    @property
    def address(self) -> str:
        """``host:port`` as bound."""

    def stop(self) -> None: ...


OpenMetrics = Callable[[Callable[[], NodeView], str, int], MetricsServerPort]
"""Makes the server for a view, a host and a port."""


class AgentService:
    """Starts everything in ``start``; ``stop`` ends it. Lives inside one actor for as long as the node is up.

    ``advertise`` turns the address that ``/metrics`` is bound to into the one that Prometheus reaches.
    """

    def __init__(
        self,
        agent: NodeAgent,
        settings: Settings,
        *,
        node_id: str,
        reporter: Reporter,
        open_metrics: OpenMetrics,
        advertise: Callable[[str], str] = lambda bound: bound,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._open_metrics = open_metrics
        self._advertise = advertise
        self._metrics: MetricsServerPort | None = None
        self._runner = AgentRunner(
            agent,
            reporter,
            open_job_settings(settings),
            poll_period_s=settings.poll_period_s,
            report_period_s=settings.report_period_s,
            node_id=node_id,
            incarnation=uuid.uuid4().hex[:12],
            metrics_address=lambda: self.metrics_address,
        )

    def start(self) -> None:
        """Serve and poll, in threads. A metrics port that is taken costs the port, not the agent."""
        try:
            self._metrics = self._serve(self._settings.metrics_port)
        except OSError as error:
            try:
                self._metrics = self._serve(0)
            except OSError:
                log.error("/metrics cannot be served on %s: %s", self._settings.listen_host, error)
            else:
                log.warning(
                    "port %d is in use (%s): /metrics is at %s",
                    self._settings.metrics_port,
                    error,
                    self._metrics.address,
                )
        self._agent.start_searching()
        self._runner.start()

    def stop(self) -> None:
        self._runner.stop()
        if self._metrics is not None:
            self._metrics.stop()
        self._agent.close()

    @property
    def metrics_address(self) -> str | None:
        """Where Prometheus finds this node; ``None`` if it is not served."""
        return None if self._metrics is None else self._advertise(self._metrics.address)

    def _serve(self, port: int) -> MetricsServerPort:
        server = self._open_metrics(self._agent.fresh_view, self._settings.listen_host, port)
        server.start()
        return server
