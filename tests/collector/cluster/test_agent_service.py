"""`AgentService`: a real agent over an empty run directory, a real metrics server, a reporter that listens."""

from __future__ import annotations

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegauge.agent.direct_reporter import DirectReporter
from tidegauge.agent.node_agent import NodeAgent, StaleViewError, open_node_agent
from tidegauge.agent.rings.discovery import RingFinder
from tidegauge.cluster.ray_service.agent_place import AgentKind, AgentPlace, look_at_place
from tidegauge.cluster.ray_service.agent_service import AgentService
from tidegauge.core.jobs.settings import JobSettings, digest
from tidegauge.core.views import NodeSummary, NodeView
from tidegauge.protocol.messages import ReportReply
from tidegauge.settings import Settings
from tidegauge_exporter.metrics.server import MetricsServer
from waiting import PATIENCE_S, eventually


class Listener:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.heard: list[NodeSummary] = []
        self.twice = threading.Event()

    def report(self, summary: NodeSummary) -> ReportReply:
        self.heard.append(summary)
        if len(self.heard) >= 2:
            self.twice.set()
        return ReportReply(accepted=True, coordinator="c1", job_settings=(JobSettings("7", 1001),))


def open_metrics(view: Callable[[], NodeView], host: str, port: int) -> MetricsServer:
    return MetricsServer(view, host=host, port=port)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def service(tmp_path: Path, listener: Listener, *, place: AgentPlace | None = None, **changes: object) -> AgentService:
    values: dict[str, object] = {
        "run_dir": tmp_path, "poll_period_s": 0.05, "report_period_s": 0.05, "metrics_port": 0,
    }  # fmt: skip
    settings = Settings.model_validate(values | changes)
    return AgentService(
        open_node_agent(settings), settings, node_id="n1", reporter=DirectReporter(listener.report),
        open_metrics=open_metrics, advertise=lambda bound: bound.replace("127.0.0.1", "node7"), place=place,
    )  # fmt: skip


@pytest.fixture
def running(tmp_path: Path, listener: Listener) -> Iterator[AgentService]:
    running = service(tmp_path, listener)
    running.start()
    yield running
    running.stop()


def test_agent_service_reports_repeatedly_with_its_metrics_address(running: AgentService, listener: Listener) -> None:
    assert listener.twice.wait(PATIENCE_S)
    first, second = listener.heard[:2]
    assert (first.node_id, first.incarnation) == ("n1", second.incarnation)
    assert first.metrics_address == running.metrics_address
    assert str(first.metrics_address).startswith("node7:")


def test_settings_for_jobs_go_to_the_run_directory_of_the_settings(
    running: AgentService, listener: Listener, tmp_path: Path
) -> None:
    assert listener.twice.wait(PATIENCE_S)
    assert listener.heard[1].settings_digest == digest([JobSettings("7", 1001)])
    assert (tmp_path / "jobs" / "7.json").exists()


def test_agent_service_serves_metrics(running: AgentService) -> None:
    address = str(running.metrics_address).replace("node7", "127.0.0.1")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
        assert b"tidegauge_collect_success" in answer.read()


def test_agent_service_exports_no_rank_while_polls_hang(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(_: NodeAgent) -> NodeView:
        raise StaleViewError("no poll has come to its end for 20 s")

    monkeypatch.setattr(NodeAgent, "fresh_view", stale)
    other = service(tmp_path, listener)
    other.start()
    try:
        address = str(other.metrics_address).replace("node7", "127.0.0.1")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            page = answer.read().decode()
        assert 'tidegauge_collect_success{source="view"} 0.0' in page
        assert "tidegauge_rank_" not in page
    finally:
        other.stop()


def test_agent_service_serves_metrics_and_gives_signs_of_life_while_its_first_look_hangs(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor killed it after a minute, and every one after it, for as long as an opener was stopped."""
    answers = threading.Event()
    monkeypatch.setattr("tidegauge.agent.search_thread.FIRST_LOOKS_S", 0.01)
    monkeypatch.setattr(RingFinder, "new_rings", lambda *_: answers.wait() and [])
    place = AgentPlace(tmp_path / "agent.lock", AgentKind.ENGINE)
    assert place.take()
    other = service(tmp_path, listener, place=place)
    other.start()
    try:
        first = look_at_place(tmp_path / "agent.lock")
        eventually(lambda: look_at_place(tmp_path / "agent.lock").beat_ns > first.beat_ns)
        address = str(other.metrics_address).replace("node7", "127.0.0.1")
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as answer:
            assert b"tidegauge_collect_success" in answer.read()
        assert not listener.heard, "a report without the ranks would seem to report their end"
        answers.set()
        assert listener.twice.wait(PATIENCE_S)
    finally:
        answers.set()
        other.stop()


def test_a_metrics_port_that_is_taken_costs_the_port_not_the_agent(
    tmp_path: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        other = service(tmp_path, listener, metrics_port=port)
        other.start()
        try:
            assert other.metrics_address not in (None, f"node7:{port}")
            assert f"port {port} is in use" in caplog.text
        finally:
            other.stop()


def test_a_host_that_is_not_ours_costs_metrics_not_the_reports(
    tmp_path: Path, listener: Listener, caplog: pytest.LogCaptureFixture
) -> None:
    other = service(tmp_path, listener, listen_host="192.0.2.77")
    other.start()
    try:
        assert listener.twice.wait(PATIENCE_S)
        assert listener.heard[0].metrics_address is None
        assert "cannot be served on 192.0.2.77" in caplog.text
    finally:
        other.stop()


def test_next_agent_serves_on_the_port_that_the_one_before_was_given(tmp_path: Path, listener: Listener) -> None:
    addresses = []
    for _ in range(2):
        place = AgentPlace(tmp_path / "agent.lock", AgentKind.ENGINE)
        assert place.take()
        running = service(tmp_path, listener, place=place)
        running.start()
        addresses.append(running.metrics_address)
        running.stop()
    assert addresses[0] == addresses[1] is not None


def test_agent_at_work_gives_signs_of_life_and_its_place_back_at_the_end(tmp_path: Path, listener: Listener) -> None:
    place = AgentPlace(tmp_path / "agent.lock", AgentKind.ENGINE)
    assert place.take()
    running = service(tmp_path, listener, place=place)
    running.start()
    first = look_at_place(tmp_path / "agent.lock")
    assert first.is_held
    eventually(lambda: look_at_place(tmp_path / "agent.lock").beat_ns > first.beat_ns)
    running.stop()
    assert not look_at_place(tmp_path / "agent.lock").is_held
