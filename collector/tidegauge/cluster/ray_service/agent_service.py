"""A node's agent at work: polls, serves ``/metrics``, reports to the coordinator. No Ray."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.agent.runner import AgentRunner, Reporter
from tidegauge.core.views import NodeView
from tidegauge.settings import Settings

if TYPE_CHECKING:
    from tidegauge_exporter.metrics.server import MetricsServer

log = logging.getLogger(__name__)


OpenMetrics = Callable[[Callable[[], NodeView], str, int], "MetricsServer"]
"""Makes the server for a view, a host and a port."""


class AgentService:
    """Runs from ``start`` to ``stop``, inside one actor for as long as the node is up.

    ``advertise`` turns the bound address of ``/metrics`` into the one that Prometheus reaches.
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
        self._metrics: MetricsServer | None = None
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
        """Serve and poll, in threads. If the metrics port is taken, another one is used."""
        port = self._settings.metrics_port
        try:
            self._metrics = self._serve(port)
        except OSError as error:
            try:
                self._metrics = self._serve(0)
            except OSError:
                log.error("/metrics cannot be served on %s: %s", self._settings.listen_host, error)
            else:
                log.warning("port %d is in use (%s): /metrics is at %s", port, error, self._metrics.address)
        self._agent.start_searching()
        self._runner.start()

    def stop(self) -> None:
        self._runner.stop()
        if self._metrics is not None:
            self._metrics.stop()
        self._agent.close()

    @property
    def metrics_address(self) -> str | None:
        """The address for Prometheus; ``None`` if nothing is served."""
        return None if self._metrics is None else self._advertise(self._metrics.address)

    def _serve(self, port: int) -> MetricsServer:
        server = self._open_metrics(self._agent.fresh_view, self._settings.listen_host, port)
        server.start()
        return server
