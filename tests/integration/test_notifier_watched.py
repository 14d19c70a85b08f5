"""Whether people can be notified: seen in the status, in /sd and in the notifier's own metrics, before any incident."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakes.fake_slack import FakeSlack
from fakes.smtp_server import FakeSmtp
from integration.server_process import free_port
from integration.service import Service, eventually

pytestmark = pytest.mark.timeout(300)


@dataclass
class Office:
    """The service with a Slack whose token it does not have yet, and a mail server."""

    service: Service
    slack: FakeSlack
    token: Path
    port: int

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10.0) as answer:
            return str(answer.read().decode())

    def shows(self, sample: str) -> bool:
        return any(line == sample for line in self.metrics().splitlines())

    def notifiers(self) -> str:
        """The line of the status."""
        lines = self.service.call("status").out.splitlines()
        return next((line for line in lines if line.startswith("notifiers")), "")


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    service, port, token = Service(), free_port(), tmp_path / "slack-token"
    token.write_text("xoxb-revoked")
    token.chmod(0o600)
    with FakeSlack() as slack, FakeSmtp() as smtp:
        service.environ |= {
            "TIDEGAUGE_NOTIFY_PORT": str(port),
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(token),
            "TIDEGAUGE_SLACK_CHANNEL": "#gpu-memory",
            "TIDEGAUGE_MAIL_SERVER": f"127.0.0.1:{smtp.port}",
            "TIDEGAUGE_MAIL_FROM": "tidegauge@example.org",
        }
        try:
            service.up()
            yield Office(service, slack, token, port)
        finally:
            service.close()


def test_a_rejected_token_is_said_without_an_incident_and_its_correction_needs_no_restart(office: Office) -> None:
    rejected = "slack: Slack rejects the token"
    eventually(lambda: rejected in office.notifiers(), "the status names the token", within_s=60.0)
    eventually(lambda: "mail: ok" in office.notifiers(), "mail was tried, too")
    eventually(lambda: office.shows('tidegauge_notification_sink_works{cluster="test",sink="slack"} 0.0'), "a 0")
    eventually(lambda: office.shows('tidegauge_notification_sink_works{cluster="test",sink="mail"} 1.0'), "a 1")
    assert office.shows('tidegauge_notifications_total{cluster="test",outcome="delivered",sink="slack"} 0.0')

    groups = json.loads(office.service.get_text("/sd"))
    found = {group["labels"]["__meta_tidegauge_component"]: group["targets"] for group in groups}
    assert found["notifier"] == [f"127.0.0.1:{office.port}"]

    (notifier,) = office.service.actors("NotifierActor")
    office.token.write_text(office.slack.token)
    eventually(lambda: "slack: ok" in office.notifiers(), "the corrected token is used", within_s=60.0)
    assert office.shows('tidegauge_notification_sink_works{cluster="test",sink="slack"} 1.0')
    assert office.service.actors("NotifierActor") == [notifier]

    for pid in office.service.coordinators():
        os.kill(pid, signal.SIGSTOP)
    try:
        silent = 'tidegauge_collect_success{source="stories"} 0.0'
        eventually(lambda: office.shows(silent), "the notifier is scraped while the coordinator is silent")
    finally:
        for pid in office.service.coordinators():
            os.kill(pid, signal.SIGCONT)
