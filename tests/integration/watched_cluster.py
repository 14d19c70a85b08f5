"""Clusters whose jobs a test lets leak and recover, served as the product serves them: one node and one coordinator
page each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sample_views import LEAK, identity, job_view, node_view, rank_summary, rank_view
from tidegauge.core.ids import JobId
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView, NodeView, RankView
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_exporter.metrics.server import MetricsServer

NOW_S = 1_800_000_000.0
"""What its coordinator thinks the time is; nothing that is tested here asks."""


@dataclass
class WatchedCluster:
    """A node with jobs of two ranks each. Its metrics move when a test says so."""

    name: str
    user_name: str = "ada"
    leaking: frozenset[str] = frozenset()
    """Ids of the jobs whose two ranks leak; replaced as a whole, so that a scrape sees all of a change."""
    jobs: Sequence[str] = field(default_factory=tuple)

    def node(self) -> NodeView:
        leaking = self.leaking
        ranks = [
            self._rank(job_id, rank, leaks=job_id in leaking, slot=2 * place + rank)
            for place, job_id in enumerate(self.jobs)
            for rank in (0, 1)
        ]
        return node_view(cluster=self.name, ranks=tuple(ranks), gpus=())

    def job_views(self) -> list[JobView]:
        ranks = (rank_summary(0), rank_summary(1))
        return [
            job_view(job_id=job_id, user_name=self.user_name, job_name=f"name of {job_id}", ranks=ranks)
            for job_id in self.jobs
        ]

    def _rank(self, job_id: str, rank: int, *, leaks: bool, slot: int) -> RankView:
        # By Prometheus' own clock: a rank whose samples are old is another alert.
        verdict, now_s = LEAK if leaks else OK, time.time()
        view = rank_view(rank, gpu=slot, uuid=f"GPU-{slot}", verdict=verdict, last_sample_unix_s=now_s)
        return replace(view, identity=identity(rank, job_id=JobId(job_id)), user_name=self.user_name)


@contextmanager
def served(clusters: Sequence[WatchedCluster]) -> Iterator[str]:
    """All of them at work; gives the scrape configurations for Prometheus, as YAML that is JSON."""
    with ExitStack() as stack:
        targets = [("agent", cluster.name, _agent(stack, cluster), "/metrics") for cluster in clusters]
        coordinator = stack.enter_context(_coordinators({cluster.name: cluster for cluster in clusters}))
        targets += [("coordinator", cluster.name, coordinator, f"/{cluster.name}") for cluster in clusters]
        yield "".join(_scrape(*target) for target in targets)


def _agent(stack: ExitStack, cluster: WatchedCluster) -> str:
    server = MetricsServer(cluster.node)
    server.start()
    stack.callback(server.stop)
    return server.address


@contextmanager
def _coordinators(clusters: dict[str, WatchedCluster]) -> Iterator[str]:
    """One server with a page for each cluster; gives its ``host:port``."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cluster = clusters[self.path.removeprefix("/")]
            page = job_metrics(
                cluster.job_views(), cluster=cluster.name, now_unix_s=NOW_S, accept=self.headers["Accept"]
            )
            self.send_response(200)
            self.send_header("Content-Type", page.content_type)
            self.end_headers()
            self.wfile.write(page.body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _scrape(component: str, cluster: str, address: str, path: str) -> str:
    labels = f"{{job: tidegauge, component: {component}, cluster: {cluster}, instance: {component}-{cluster}}}"
    return (
        f"  - job_name: {component}-{cluster}\n"
        f"    honor_labels: true\n"
        f"    metrics_path: {path}\n"
        f'    static_configs: [{{targets: ["{address}"], labels: {labels}}}]\n'
    )
