"""A head that dies is told of by Alertmanager alone: Prometheus and Alertmanager as the scripts of deploy/observability
start them. Waits are shorter than shipped. The head is its two pages that Prometheus asks, so that it can die at once;
bench/killed_for_ten_minutes.py kills a real one."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from integration.alert_receiver import AlertReceiver, Notified, alert_receiver
from integration.alertmanager_server import alertmanager_binary
from integration.needs import missing
from integration.observability_scripts import OBSERVABILITY, brought_up
from integration.prometheus_server import PrometheusServer, prometheus_binary
from integration.server_process import free_port
from matrix import turn
from serving import Serving
from tidegauge_exporter.metrics.service_discovery import http_sd

pytestmark = pytest.mark.timeout(600)

METRICS = "# TYPE tidegauge_nodes gauge\ntidegauge_nodes 1\n"


@contextmanager
def head(port: int) -> Iterator[None]:
    """The coordinator's ``/sd`` and ``/metrics`` on this port, alive until the block ends."""
    pages = {
        "/sd": ("application/json", json.dumps(http_sd([], cluster="test", coordinator_address=f"127.0.0.1:{port}"))),
        "/metrics": ("text/plain; version=0.0.4", METRICS),
    }

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content_type, text = pages[self.path]
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class's name)
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Pages)
    server.daemon_threads = True
    with Serving(server):
        yield


@dataclass
class Town:
    """Prometheus, and who is notified: Tidegauge's own receiver, whoever is on call, a dead man's switch."""

    head_port: int
    prometheus: PrometheusServer
    ours: AlertReceiver
    on_call: AlertReceiver
    switch: AlertReceiver


def impatient_scripts(folder: Path) -> Path:
    """A copy of deploy/observability in which everything that waits does so for seconds."""
    scripts = folder / "observability"
    shutil.copytree(OBSERVABILITY, scripts)
    for path in (*scripts.glob("prometheus/**/*.yml"), *scripts.glob("alertmanager/*.yml")):
        text = path.read_text(encoding="utf-8")
        text = re.sub(r"\b(\w*interval|for|group_wait|scrape_timeout): [0-9]+[sm]\b", r"\1: 1s", text)
        path.write_text(text.replace("for: 1s", "for: 3s"), encoding="utf-8")
    return scripts


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    if prometheus_binary() is None or alertmanager_binary() is None:
        missing("prometheus or alertmanager is not installed")
    scripts = impatient_scripts(tmp_path)
    head_port, alertmanager = free_port(), free_port()
    for name in ("alertmanager", "prometheus"):
        (tmp_path / name).mkdir()
    with alert_receiver() as ours, alert_receiver() as on_call, alert_receiver() as switch:
        to = brought_up(
            "alertmanager.sh", tmp_path / "alertmanager", "--receiver", ours.url.split("/")[2],
            "--service-receiver", str(on_call.receiver_file(tmp_path / "on-call.yml")),
            "--watchdog-receiver", str(switch.receiver_file(tmp_path / "switch.yml", send_resolved=False)),
            port=alertmanager, scripts=scripts,
        )  # fmt: skip
        at = brought_up(
            "prometheus.sh", tmp_path / "prometheus", "--coordinator", f"127.0.0.1:{head_port}",
            "--alertmanager", f"127.0.0.1:{alertmanager}", scripts=scripts,
        )  # fmt: skip
        with to, at as prometheus_url:
            yield Town(head_port, PrometheusServer(prometheus_url, 0), ours, on_call, switch)


@turn(1)
def test_dead_head_is_told_to_the_sites_own_receiver_and_by_nothing_of_ours(town: Town) -> None:
    def is_it(alert: Notified, status: str) -> bool:
        return (alert.name, alert.status, alert.labels.get("cluster")) == ("TidegaugeCoordinatorDown", status, "test")

    with head(town.head_port):
        town.prometheus.wait_for('up{component="coordinator"} == 1')
        town.switch.wait_for(lambda alert: alert.name == "Watchdog", within_s=90)

    told = town.on_call.wait_for(lambda alert: is_it(alert, "firing"), within_s=90)
    assert told.annotations["summary"] == "Coordinator down (cluster test)"
    assert told.annotations["runbook_url"].endswith("/consoles/tidegauge-runbooks.html#tidegaugecoordinatordown")

    with head(town.head_port):
        town.on_call.wait_for(lambda alert: is_it(alert, "resolved"), within_s=90)

    assert town.ours.notified == [], "alerts about the service have one way, and it is not ours"
    assert {alert.name for alert in town.switch.notified} == {"Watchdog"}
    assert "Watchdog" not in {alert.name for alert in town.on_call.notified}
