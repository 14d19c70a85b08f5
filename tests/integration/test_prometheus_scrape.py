"""A real Prometheus finds a node by ``/sd``, scrapes its ``/metrics``, and PromQL names the rank that leaks.

The node is a view that moves with time: two ranks, of which rank 1 grows by 64 MiB a step until it is ended.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from integration.needs import missing
from integration.prometheus_server import PrometheusServer, prometheus_binary, running_prometheus
from sample_views import GIB, LEAK, MIB, gpu_view, job_view, node_view, rank_view
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.views import NodeSummary, NodeView
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_exporter.metrics.server import MetricsServer
from tidegauge_exporter.metrics.service_discovery import advertised_address, http_sd

pytestmark = [
    pytest.mark.skipif(prometheus_binary() is None, reason="prometheus (Debian package) is not installed"),
    pytest.mark.timeout(400),
]

POD = PodPlace("8a1c4f3e", "team-a", "llm-0", "train", job_known=True)
"""Of rank 0; rank 1 is in none."""
STEPS_PER_S = 10
LEAK_BYTES_PER_STEP = 64 * MIB

CONFIG = """
global: {scrape_interval: 1s, scrape_timeout: 1s}
scrape_configs:
  - job_name: tidegauge
    honor_labels: true
    http_sd_configs: [{url: "http://COORDINATOR/sd", refresh_interval: 1s}]
    relabel_configs:
      - {source_labels: [__meta_tidegauge_component], target_label: component}
"""


class MovingNode:
    """A node of which rank 1 leaks, by the clock on the wall: Prometheus' own clock cannot be faked."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self.ended = threading.Event()

    def __call__(self) -> NodeView:
        step = int((time.monotonic() - self._began_s) * STEPS_PER_S)
        now_s = time.time()
        healthy = rank_view(0, steps=step, step=step, last_sample_unix_s=now_s, pod=POD)
        leaking = rank_view(
            1,
            steps=step,
            step=step,
            last_sample_unix_s=now_s,
            allocated_bytes=10 * GIB + step * LEAK_BYTES_PER_STEP,
            verdict=LEAK,
        )
        ranks = (healthy,) if self.ended.is_set() else (healthy, leaking)
        return node_view(now_unix_s=now_s, ranks=ranks, gpus=(gpu_view(0), gpu_view(1)))


class Cluster:
    """What a test holds: the moving node, and the Prometheus that looks at it."""

    def __init__(self, node: MovingNode, prometheus: PrometheusServer, agent_address: str) -> None:
        self.node = node
        self.prometheus = prometheus
        self.agent_address = agent_address


@contextmanager
def coordinator_serving(node: NodeSummary) -> Iterator[str]:
    """The two pages of a coordinator that concern Prometheus; gives their ``host:port``."""

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/sd":
                self._answer(
                    json.dumps(http_sd([node], cluster="lab", coordinator_address=address)), "application/json"
                )
            else:
                page = job_metrics([job_view()], cluster="lab", now_unix_s=0.0, accept=self.headers["Accept"])
                self._answer(page.body.decode(), page.content_type)

        def _answer(self, body: str, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Pages) as server:
        address = f"127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield address
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("prometheus")
    node = MovingNode()
    server = MetricsServer(node)
    server.start()
    try:
        told = NodeSummary(
            node_id="a1",
            hostname="node7",
            agent_pid=1,
            incarnation="a",
            metrics_address=advertised_address(server.address, "node7"),
            sent_unix_s=0.0,
        )
        with (
            coordinator_serving(told) as address,
            running_prometheus(folder, CONFIG.replace("COORDINATOR", address)) as prometheus,
        ):
            yield Cluster(node, prometheus, server.address)
    finally:
        server.stop()


def ranks_of(result: list[dict[str, Any]]) -> list[str]:
    return sorted(sample["metric"].get("rank", "?") for sample in result)


def test_prometheus_finds_agent_and_coordinator_by_service_discovery(cluster: Cluster) -> None:
    up = cluster.prometheus.wait_for("up == 1", lambda result: len(result) == 2)
    components = {sample["metric"]["component"]: sample["metric"]["instance"] for sample in up}
    assert components["agent"] == cluster.agent_address
    assert set(components) == {"agent", "coordinator"}


def test_promql_names_the_rank_that_leaks(cluster: Cluster) -> None:
    leaking = cluster.prometheus.wait_for("max by (rank) (tidegauge_rank_leak_state) == 2")
    assert ranks_of(leaking) == ["1"]


def test_promql_sees_how_fast_it_grows(cluster: Cluster) -> None:
    per_step = "deriv(tidegauge_rank_allocated_bytes[5s]) / deriv(tidegauge_rank_steps_total[5s])"
    slopes = cluster.prometheus.wait_for(
        f"max by (rank) ({per_step})",
        lambda result: ranks_of(result) == ["0", "1"] and float(result_of(result, "1")) > 0,
    )
    assert result_of(slopes, "0") == 0
    assert result_of(slopes, "1") == pytest.approx(LEAK_BYTES_PER_STEP, rel=0.01)


def result_of(result: list[dict[str, Any]], rank: str) -> float:
    return next(float(sample["value"][1]) for sample in result if sample["metric"]["rank"] == rank)


def test_the_owner_is_one_join_away(cluster: Cluster) -> None:
    result = cluster.prometheus.wait_for(
        "max by (cluster, job_id, attempt) (tidegauge_rank_leak_state)"
        " * on (cluster, job_id, attempt) group_left (user_name) tidegauge_job_info"
    )
    assert [(sample["metric"]["user_name"], sample["value"][1]) for sample in result] == [("ada", "2")]


def test_a_rank_joins_its_gpu_by_uuid(cluster: Cluster) -> None:
    result = cluster.prometheus.wait_for(
        "tidegauge_rank_reserved_bytes / on (UUID) group_left () tidegauge_gpu_total_bytes",
        lambda result: len(result) == 2,
    )
    assert {sample["value"][1] for sample in result} == {"0.15"}


def test_ranks_are_chosen_by_their_pods_and_those_without_one_by_its_absence(cluster: Cluster) -> None:
    own = '{namespace="team-a", pod="llm-0", container="train"}'
    assert ranks_of(cluster.prometheus.wait_for(f"tidegauge_rank_allocated_bytes{own}")) == ["0"]
    assert ranks_of(cluster.prometheus.wait_for('tidegauge_rank_allocated_bytes{pod=""}')) == ["1"]
    joined = f"tidegauge_rank_info{own} * on (cluster, job_id, rank) group_left tidegauge_rank_steps_total"
    assert ranks_of(cluster.prometheus.wait_for(joined)) == ["0"]


def test_promtool_is_content_with_families_in_which_only_some_ranks_have_a_pod(cluster: Cluster) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        missing("promtool is not installed")
    with urlopen(f"http://{cluster.agent_address}/metrics", timeout=60) as answer:
        page = answer.read()
    assert b'pod="llm-0"' in page
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_rank_that_ends_goes_stale_at_the_next_scrape(cluster: Cluster) -> None:
    cluster.prometheus.wait_for("tidegauge_rank_allocated_bytes", lambda result: ranks_of(result) == ["0", "1"])
    cluster.node.ended.set()
    began_s = time.monotonic()
    left = cluster.prometheus.wait_for(
        "tidegauge_rank_allocated_bytes", lambda result: ranks_of(result) == ["0"], within_s=60
    )
    assert len(left) == 1
    assert time.monotonic() - began_s < 120, "gone by staleness, not by the lookback of 5 minutes"
    assert cluster.prometheus.query('tidegauge_rank_ooms_total{rank="1"}') == []
