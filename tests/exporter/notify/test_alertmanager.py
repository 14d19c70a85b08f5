from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from exporter.notify.telling import LINKS, Clock, closed, escalated, happened, story, warning
from incident_watch import Watch, replica
from sample_views import LEAK, NOW_S
from scheduler_values import died_of_oom
from serving import Serving
from tidegauge.core.incidents import ChangeKind, IncidentState
from tidegauge.core.verdicts import OK, Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.alertmanager import (
    AWAY_AFTER_S,
    ENDS_LATER_S,
    LASTS_S,
    MAX_ALERTS_PER_REQUEST,
    REFRESH_EVERY_S,
    AlertmanagerSink,
)
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError


class FakeAlertmanager:
    """Takes what is posted, or answers what it is told to."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, list[dict[str, Any]]]] = []
        self.answer: tuple[int, bytes] = (200, b"")
        self.drips = threading.Event()
        self.closing = threading.Event()
        self.url = ""

    @property
    def alerts(self) -> list[dict[str, Any]]:
        """Of the latest request."""
        return self.requests[-1][1]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        status, body = self.server.fake.answer
        body = body or json.dumps([{"name": "tidegauge"}]).encode()
        assert self.path.endswith("/api/v2/receivers")
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        fake = self.server.fake
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if fake.answer[0] == 200:
            fake.requests.append((self.path, body))
        self.send_response(fake.answer[0])
        self.send_header("Content-Length", str(len(fake.answer[1]) + 1000 * fake.drips.is_set()))
        self.end_headers()
        self.wfile.write(fake.answer[1])
        with contextlib.suppress(OSError):
            while fake.drips.is_set() and not fake.closing.wait(0.01):
                self.wfile.write(b" ")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, fake: FakeAlertmanager) -> None:
        self.fake = fake
        super().__init__(("127.0.0.1", 0), Handler)


@contextmanager
def running(fake: FakeAlertmanager) -> Iterator[FakeAlertmanager]:
    server = Server(fake)
    fake.url = f"http://127.0.0.1:{server.server_port}"
    with Serving(server):
        try:
            yield fake
        finally:
            fake.closing.set()


@pytest.fixture
def fake() -> Iterator[FakeAlertmanager]:
    with running(FakeAlertmanager()) as fake:
        yield fake


class Bench:
    def __init__(self, url: str, links: Links = LINKS, timeout_s: float = 30.0) -> None:
        self.clock = Clock()
        self.sink = AlertmanagerSink(url, cluster="rose", links=links, wall_s=self.clock, timeout_s=timeout_s)

    def take(self, *stories: Story, after_s: float = 2.0) -> None:
        self.clock.now_s += after_s
        self.sink.take(stories)

    def fires(self, alert: dict[str, Any]) -> bool:
        return unix_s(alert["endsAt"]) > self.clock.now_s


def unix_s(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()


def test_an_incident_is_an_alert_with_the_labels_that_are_agreed(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(warning(7))
    ((path, (alert,)),) = fake.requests
    assert path == "/api/v2/alerts"
    assert alert["labels"] == {
        "alertname": "TidegaugeIncident", "cluster": "rose", "job_id": "477", "attempt": "0", "cause": "leak",
        "severity": "warning", "incident": "7", "user_name": "ada",
    }  # fmt: skip
    annotations = alert["annotations"]
    assert annotations["summary"].startswith("Rank 1 of job 477 grows by 12.0 MiB per step")
    assert annotations["description"].startswith("Live tensors accumulate")
    assert annotations["runbook_url"] == "https://head.example/runbooks#tidegaugeincident"
    assert annotations["report_url"] == alert["generatorURL"] == "https://head.example/report?incident=7"
    assert annotations["job_url"].startswith("https://head.example/job?job_id=477&attempt=0&uid=")
    assert annotations["dashboard_url"].startswith("https://grafana.example/d/tidegauge-job?")
    assert unix_s(alert["startsAt"]) == pytest.approx(NOW_S, abs=1e-3)
    assert unix_s(alert["endsAt"]) == pytest.approx(bench.clock.now_s + LASTS_S, abs=1e-3)


def test_without_addresses_nothing_is_linked(fake: FakeAlertmanager) -> None:
    Bench(fake.url, Links()).take(warning(7))
    assert set(fake.alerts[0]["annotations"]) == {"summary", "description"}
    assert "generatorURL" not in fake.alerts[0]


def test_alertmanager_alert_is_refreshed_once_a_minute(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    for _ in range(10):
        bench.take(warning(1))
    assert len(fake.requests) == 1
    bench.take(happened(warning(1), ChangeKind.UPDATED, 60.0), after_s=REFRESH_EVERY_S)
    assert len(fake.requests) == 2
    assert bench.fires(fake.alerts[0])


def test_replicas_of_a_server_are_one_alert_that_stays_the_same_as_they_come_and_go(fake: FakeAlertmanager) -> None:
    bench, watch = Bench(fake.url), Watch()

    def told(*leaking: int) -> list[Story]:
        watch.see(*(replica(number, LEAK if number in leaking else OK) for number in range(8)), for_s=200)
        newest = {change.incident.number: change.incident for change in watch.told}
        newest |= {one.number: one for one in watch.tracker.incidents}
        return [Story(one) for one in newest.values()]

    bench.clock.now_s = watch.now_s
    bench.take(*told(0, 1))
    (first,) = fake.alerts
    assert first["labels"] == {
        "alertname": "TidegaugeIncident", "cluster": "rose", "job_id": "team-a/vllm", "attempt": "0", "cause": "leak",
        "severity": "critical", "incident": "1", "user_name": "ada", "server": "StatefulSet",
    }  # fmt: skip
    assert first["annotations"]["summary"].startswith("2 of 8 replicas of job team-a/vllm leak. Rank 0 of job")
    bench.take(*told(1, 2, 3), after_s=200.0)
    (second,) = fake.alerts
    assert (second["labels"], second["startsAt"]) == (first["labels"], first["startsAt"])
    assert second["annotations"]["summary"].startswith("3 of 8 replicas of job team-a/vllm leak.")
    assert second["annotations"]["report_url"].endswith("incident=2"), "the first has recovered"
    bench.take(*told(), after_s=200.0)
    bench.take(*told(), after_s=ENDS_LATER_S)
    (last,) = fake.alerts
    assert last["labels"] == first["labels"]
    assert not bench.fires(last)


@pytest.mark.parametrize("told", [True, False])
def test_alertmanager_alert_ends_some_time_after_its_incident_closed(fake: FakeAlertmanager, told: bool) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    began = fake.alerts[0]
    over = [closed(warning(1))] if told else []
    bench.take(*over)
    assert bench.fires(fake.alerts[0]), "rules' alerts about the same job are still muted"
    for _ in range(3):
        bench.take(*over, after_s=ENDS_LATER_S)
    assert len(fake.requests) == 2
    (alert,) = fake.alerts
    assert alert["labels"] == began["labels"]
    assert unix_s(alert["endsAt"]) == pytest.approx(NOW_S + 4.0 + ENDS_LATER_S, abs=1e-3)


def test_alertmanager_alert_of_a_recovering_incident_still_fires(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    bench.take(
        happened(warning(1), ChangeKind.RECOVERING, 9.0, state=IncidentState.RECOVERING), after_s=REFRESH_EVERY_S
    )
    assert bench.fires(fake.alerts[0])


def test_another_severity_ends_the_old_alert_and_begins_another(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    bench.take(escalated(warning(1)))
    assert [(alert["labels"]["severity"], bench.fires(alert)) for alert in fake.alerts] == [
        ("warning", False), ("critical", True),
    ]  # fmt: skip
    bench.take(escalated(warning(1)))
    assert len(fake.requests) == 2


def test_notes_are_no_alerts_and_easing_to_one_ends_it(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    note = happened(warning(1), ChangeKind.EASED, 9.0, severity=Severity.NOTE)
    bench.take(note)
    assert not any(bench.fires(alert) for alert in fake.alerts), "only the end of what an earlier notifier posted"
    bench.take(warning(1))
    bench.take(note)
    bench.take(note, after_s=ENDS_LATER_S)
    assert not bench.fires(fake.alerts[0])


def test_many_are_posted_in_parts(fake: FakeAlertmanager) -> None:
    Bench(fake.url).take(*(warning(number) for number in range(1, MAX_ALERTS_PER_REQUEST + 2)))
    assert [len(alerts) for _, alerts in fake.requests] == [MAX_ALERTS_PER_REQUEST, 1]


def test_a_clock_that_was_set_back_ends_no_alert_before_it_began(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    bench.take(after_s=-1e6)
    (alert,) = fake.alerts
    assert unix_s(alert["endsAt"]) >= unix_s(alert["startsAt"])


def test_hostile_names_are_json_like_any_other(fake: FakeAlertmanager) -> None:
    name = '"},{"\n\x00\udc80<script>'
    told = warning(1)
    key = told.incident.key._replace(job=told.incident.key.job._replace(job_id=name))
    Bench(fake.url).take(warning(1, key=key, user_name=""))
    assert fake.alerts[0]["labels"]["job_id"] == name
    assert "user_name" not in fake.alerts[0]["labels"]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_alertmanager_sink_posts_again_what_was_refused(fake: FakeAlertmanager, status: int) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    bench.take(closed(warning(1)))
    bench.clock.now_s += ENDS_LATER_S
    fake.answer = (status, b"not now")
    for _ in range(2):
        with pytest.raises(RetryLaterError, match=f"answers {status}: not now"):
            bench.take(closed(warning(1)), warning(2))
    fake.answer = (200, b"")
    bench.take(closed(warning(1)), warning(2))
    assert [(alert["labels"]["incident"], bench.fires(alert)) for alert in fake.alerts] == [("1", False), ("2", True)]


@pytest.mark.parametrize(("status", "words"), [(400, "bad label"), (404, "alertmanager_url"), (302, "address")])
def test_a_refusal_says_what_it_says(fake: FakeAlertmanager, status: int, words: str) -> None:
    fake.answer = (status, b"bad label \n" + b"x" * 10_000)
    with pytest.raises(RefusedError, match=words) as caught:
        Bench(fake.url).take(warning(1))
    assert len(str(caught.value)) < 400


def test_alertmanager_sink_is_away_after_ten_minutes_without_an_answer() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets this port meanwhile
        bench = Bench(f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(RetryLaterError, match="does not answer"):
            bench.take(warning(1))
    assert not bench.sink.is_away()
    bench.clock.now_s += AWAY_AFTER_S
    assert bench.sink.is_away()


def test_alertmanager_sink_is_not_away_after_a_successful_post(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    fake.answer = (503, b"")
    with pytest.raises(RetryLaterError):
        bench.take(warning(1))
    fake.answer = (200, b"")
    bench.take(warning(1), after_s=AWAY_AFTER_S)
    assert not bench.sink.is_away()


def test_an_answer_that_never_ends_is_cut_off(fake: FakeAlertmanager) -> None:
    fake.drips.set()
    with pytest.raises(RetryLaterError, match="does not answer"):
        Bench(fake.url, timeout_s=0.2).take(warning(1))


def test_a_path_of_a_gateway_is_kept(fake: FakeAlertmanager) -> None:
    Bench(f"{fake.url}/alertmanager/").take(warning(1))
    assert fake.requests[0][0] == "/alertmanager/api/v2/alerts"


@pytest.mark.parametrize("url", ["", "head:9093", "ftp://head", "http://", "http://me:secret@head:9093"])
def test_alertmanager_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="looks like http") as caught:
        Bench(url)
    assert "secret" not in str(caught.value)


def test_a_critical_story_is_critical(fake: FakeAlertmanager) -> None:
    Bench(fake.url).take(story(1))
    assert fake.alerts[0]["labels"]["severity"] == "critical"


def test_alertmanager_alerts_of_a_killed_notifier_are_ended_by_the_next(fake: FakeAlertmanager) -> None:
    told = warning(1)
    Bench(fake.url).take(told)
    worse = escalated(told)
    after = Bench(fake.url)
    after.take(worse)
    assert {alert["labels"]["severity"]: after.fires(alert) for alert in fake.alerts} == {
        "warning": False, "critical": True,
    }  # fmt: skip
    last = Bench(fake.url)
    last.take(closed(worse))
    assert [last.fires(alert) for alert in fake.alerts] == [False, False]


def test_incidents_that_ended_long_before_are_not_spoken_of(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(closed(warning(1), at_s=-LASTS_S - 10.0))
    assert fake.requests == []


def test_the_alert_of_growth_that_ended_in_an_error_says_so_at_once(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    told = died_of_oom(opened_unix_s=NOW_S)
    growth = story(1, key=told.key, opened_unix_s=NOW_S)
    bench.take(growth)
    assert "runs out of memory in" in fake.alerts[0]["annotations"]["summary"]
    for _ in range(2):
        bench.take(Story(told))
    (alert,) = fake.alerts
    assert bench.fires(alert)
    assert alert["labels"] == fake.requests[0][1][0]["labels"], "it is the same alert"
    assert "ran out of GPU memory" in alert["annotations"]["summary"]
    assert alert["annotations"]["description"] == told.explanation
    assert len(fake.requests) == 2
    bench.take(Story(told), after_s=ENDS_LATER_S)
    assert not bench.fires(fake.alerts[0])
    assert "ran out of GPU memory" in fake.alerts[0]["annotations"]["summary"]


def test_check_asks_alertmanager_and_posts_nothing(fake: FakeAlertmanager) -> None:
    Bench(fake.url).sink.check()
    assert fake.requests == []


@pytest.mark.parametrize(("status", "error"), [(503, RetryLaterError), (404, RefusedError)])
def test_check_fails_as_a_post_does(fake: FakeAlertmanager, status: int, error: type[Exception]) -> None:
    fake.answer = (status, b"not now")
    with pytest.raises(error, match=f"answers {status}: not now"):
        Bench(fake.url).sink.check()


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"\xff\xfe\x00", b"{}", b"null"])
def test_check_refuses_what_is_no_alertmanager(fake: FakeAlertmanager, body: bytes) -> None:
    fake.answer = (200, body)
    with pytest.raises(RefusedError, match=r"does not answer as Alertmanager does.*alertmanager_url"):
        Bench(fake.url).sink.check()


def test_a_long_list_of_receivers_is_one_of_alertmanager(fake: FakeAlertmanager) -> None:
    fake.answer = (200, json.dumps([{"name": f"team-{number}"} for number in range(10_000)]).encode())
    Bench(fake.url).sink.check()


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"\xff\xfe\x00"])
def test_a_page_in_place_of_alertmanager_takes_no_alert(fake: FakeAlertmanager, body: bytes) -> None:
    bench = Bench(fake.url)
    fake.answer = (200, body)
    with pytest.raises(RefusedError, match="does not answer as Alertmanager does"):
        bench.take(warning(1))
    fake.answer = (200, b"")
    bench.take(warning(1))
    assert bench.fires(fake.alerts[0])


def test_each_post_is_counted_by_its_outcome(fake: FakeAlertmanager) -> None:
    bench = Bench(fake.url)
    bench.take(warning(1))
    fake.answer = (503, b"")
    with pytest.raises(RetryLaterError):
        bench.take(warning(1), warning(2))
    fake.answer = (400, b"")
    with pytest.raises(RefusedError):
        bench.take(warning(1), warning(2))
    totals = bench.sink.deliveries.figures().totals
    assert {outcome.value: count for outcome, count in totals.items()} == {
        "delivered": 1, "retried": 1, "refused": 1, "dropped": 0,
    }  # fmt: skip
