"""A node's agent at work: polls, serves ``/metrics``, reports to the coordinator. No Ray."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from tidegauge.agent.agent_state import AgentState
from tidegauge.agent.job_settings import open_job_settings
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.runner import AgentRunner, Reporter, quiet_period_s
from tidegauge.cluster.ray_service.agent_place import AgentPlace
from tidegauge.cluster.service_record import NodeSpec, StateFiles
from tidegauge.core.views import NodeView
from tidegauge.settings import Settings
from tidegauge.steady_clock import read_boot_id

if TYPE_CHECKING:
    from tidegauge_exporter.metrics.server import MetricsServer

log = logging.getLogger(__name__)

FIRST_POLL_S = 2.0
"""Scrapes wait so long for the first poll: a page without ranks would end their series. A driver may hang longer."""

OpenMetrics = Callable[[Callable[[], NodeView], str, int], "MetricsServer"]
"""Makes the server for a view, a host and a port."""


class AgentService:
    """Runs from ``start`` to ``stop``, for as long as its process is the agent of the node: ``place`` is given back at
    the end.

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
        place: AgentPlace | None = None,
    ) -> None:
        self._place = place
        self._has_polled = threading.Event()
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
            quiet_poll_period_s=quiet_period_s(settings.poll_period_s),
            node_id=node_id,
            incarnation=uuid.uuid4().hex[:12],
            metrics_address=lambda: self.metrics_address,
            after_poll=self._after_poll,
            may_report=agent.may_report,
        )

    def start(self) -> None:
        """Poll and serve, in threads. If the metrics port is taken, that of the agent before is used, or any."""
        self._metrics = self._bound()
        self._agent.start_searching(on_found=self._runner.poll_soon)
        self._runner.start()
        if self._metrics is not None:
            self._has_polled.wait(FIRST_POLL_S)
            self._metrics.start()

    def stop(self) -> None:
        """Keep the state, free the port, and then the place."""
        self._runner.stop()
        if self._metrics is not None:
            self._metrics.stop()
        self._agent.close()
        if self._place is not None:
            self._place.release()

    @property
    def metrics_address(self) -> str | None:
        """The address for Prometheus; ``None`` if nothing is served."""
        return None if self._metrics is None else self._advertise(self._metrics.address)

    def _after_poll(self) -> None:
        self._has_polled.set()
        if self._place is not None:
            self._place.beat()

    def _bound(self) -> MetricsServer | None:
        """The server on its port: scrapes wait from now on."""
        wanted = self._settings.metrics_port
        last = None if self._place is None else self._place.last_port
        problem: OSError | None = None
        for port in dict.fromkeys((wanted or last or 0, last or 0, 0)):
            server = self._open_metrics(self._agent.fresh_view, self._settings.listen_host, port)
            try:
                server.bind()
            except OSError as error:
                problem = error
                continue
            if self._place is not None:
                self._place.serves_at(server.port)
            if problem is not None and server.port != wanted:
                log.warning("port %d is in use (%s): /metrics is at %s", wanted or last, problem, server.address)
            return server
        log.error("/metrics cannot be served on %s: %s", self._settings.listen_host, problem)
        return None


def open_agent_service(
    spec: NodeSpec,
    files: StateFiles,
    *,
    node_id: str,
    reporter: Reporter,
    place: AgentPlace,
    take: Callable[[], None],
) -> AgentService:
    """The agent of this node, wherever it is hosted. ``take`` returns when this process has ``place``: all that takes
    time is done before, and the state is read after, when the one before has kept it."""
    import encodings.idna  # noqa: F401 - the standard library's for the first address

    import tidegauge.agent.nvml  # noqa: F401 - the first poll's
    from tidegauge.http.door_start import open_door
    from tidegauge_exporter.metrics.server import MetricsServer
    from tidegauge_exporter.metrics.service_discovery import advertised_address

    settings = Settings(**spec.settings)
    take()
    door = open_door(settings, what="/metrics")
    return AgentService(
        open_node_agent(settings, state=AgentState(files.agent_state, boot_id=read_boot_id())), settings,
        node_id=node_id, reporter=reporter,
        open_metrics=lambda view, host, port: MetricsServer(view, host=host, port=port, door=door),
        advertise=lambda bound: advertised_address(bound, spec.node_address),
        place=place,
    )  # fmt: skip
