"""The coordinator's pages for people: the report of an incident, and the runbooks. Real sockets and a real database."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path

import pytest

from html_text import Page
from loop_store import told_store
from sample_views import GIB, NOW_S
from still_service import AwayEngine, StillLoop
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.action_loop import ActionLoop, Opened
from tidegauge.cluster.incident_loops.evidence_asks import EvidenceAsks
from tidegauge.cluster.ray_service.coordinator_service import CoordinatorService
from tidegauge.cluster.ray_service.exporter_pages import exporter_pages
from tidegauge.cluster.store import Store, StoreError, open_store, sqlite_url
from tidegauge.core.job_records.memory import RankMemory
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.settings import Settings
from waiting import PATIENCE_S


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = open_store(sqlite_url(tmp_path))
    yield store
    store.close()


@pytest.fixture
def service(tmp_path: Path, store: Store) -> Iterator[CoordinatorService]:
    told = told_store()
    store.incidents.save(told.incidents.story)
    store.audit.write_ahead([record.decision for record in told.audit.made])
    action_loop = ActionLoop(lambda: Opened(store, StillLoop(), lambda: NOW_S), keep_incidents_s=1e9)
    settings = Settings(cluster="lab", grafana_url="http://grafana.example", public_url="http://head.example:9495")
    coordinator = Coordinator(wall_s=lambda: NOW_S, monotonic_s=lambda: 100.0, incarnation="c")
    service = CoordinatorService(
        coordinator, AwayEngine(), exporter_pages(settings), action_loop, cluster="lab", host="127.0.0.1", port=0,
        advertise_host="127.0.0.1", asks=EvidenceAsks(tmp_path / "asks"),
    )  # fmt: skip
    action_loop.turn()
    service.start()
    yield service
    service.stop()


def get(service: CoordinatorService, path: str) -> tuple[str, Message]:
    with urllib.request.urlopen(service.url + path, timeout=PATIENCE_S) as answer:
        return answer.read().decode(), answer.headers


def test_report_tells_the_incident_and_what_was_done(service: CoordinatorService) -> None:
    page, headers = get(service, "/report?incident=1")
    text = Page(page).text
    assert "job 4711" in text
    assert "http://grafana.example/d/tidegauge-job?" in page
    for part in ("rank 1", "pending: requeue the job", "on hold", "severity rose to critical"):
        assert part in text.lower(), text
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["Content-Security-Policy"]


def test_report_shows_the_curve_of_an_incident_whose_job_is_gone(service: CoordinatorService, store: Store) -> None:
    before, _ = get(service, "/report?incident=1")
    assert "No readings" in Page(before).text
    points = [MemoryPoint(NOW_S - 600.0 + second, second, GIB * second, GIB * second, 0) for second in range(60)]
    store.incidents.save_memory({1: [RankMemory(1, tuple(points))]})
    page, _ = get(service, "/report?incident=1")
    assert "No readings" not in Page(page).text
    assert "step 59" in page


def test_report_of_an_incident_that_never_was_is_not_found(service: CoordinatorService) -> None:
    with pytest.raises(urllib.error.HTTPError) as caught:
        get(service, "/report?incident=77")
    with caught.value as answer:
        assert (answer.code, "no incident 77" in answer.read().decode()) == (404, True)


def test_runbooks_have_the_sections_that_alerts_and_messages_link_to(service: CoordinatorService) -> None:
    page, _ = get(service, "/runbooks")
    for section in ("tidegaugeleakoomsoon", "tidegaugeincident", "keep-my-job-running"):
        assert f'id="{section}"' in page


def test_report_says_so_while_there_is_no_database(service: CoordinatorService, tmp_path: Path) -> None:
    def none() -> Opened:
        raise StoreError("no database here")

    other = CoordinatorService(
        service.coordinator, AwayEngine(), exporter_pages(Settings()), ActionLoop(none, keep_incidents_s=0.0),
        cluster="lab", host="127.0.0.1", port=0, advertise_host="127.0.0.1", asks=EvidenceAsks(tmp_path / "asks"),
    )  # fmt: skip
    other.start()
    try:
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(other, "/report?incident=1")
        with caught.value as answer:
            assert answer.code == 503
    finally:
        other.stop()
