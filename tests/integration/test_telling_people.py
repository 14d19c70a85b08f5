"""From a leak to people: real job, service, Alertmanager and notifier; Slack and Grafana are fakes of their shapes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from fakes.fake_grafana import TOKEN, FakeGrafana, grafana_server
from fakes.fake_slack import FakeSlack, Thread
from integration.alertmanager_server import AlertmanagerServer, alertmanager_binary, running_alertmanager
from integration.closed_loop_site import Site, done, to_the_requeue
from integration.needs import missing
from integration.server_process import free_port
from integration.service import Service, eventually
from matrix import turn
from tidegauge.cli.demo.jobs import last_lines

pytestmark = [pytest.mark.rig, pytest.mark.timeout(900)]

CONFIG = Path(__file__).parents[2] / "deploy/observability/alertmanager/alertmanager.yml"
CHANNEL = "#gpu-memory"
OWNER = "ada@example.org"
PNG = b"\x89PNG\r\n"


@dataclass
class Town:
    """Everybody who is told, and the site that they are told of."""

    site: Site
    slack: FakeSlack
    grafana: FakeGrafana
    alertmanager: AlertmanagerServer

    def notifiers(self) -> list[int]:
        return self.site.service.actors("NotifierActor")

    def has_written_down_all(self) -> bool:
        """Whether the notifier knows of each message that Slack has."""
        journal = (self.site.service.files.root / "notified.jsonl").read_text()
        return all(message.ts in journal for message in self.slack.messages if message.thread_ts is None)

    def thread_of(self, number: int) -> Thread | None:
        threads = [
            thread for thread in self.slack.threads(CHANNEL) if f"incident {number}" in thread.parent.words.lower()
        ]
        assert len(threads) <= 1, "one thread an incident"
        return threads[0] if threads else None


@pytest.fixture
def town(rig: Rig, tmp_path: Path) -> Iterator[Town]:
    if alertmanager_binary() is None:
        missing("alertmanager is not installed")
    environ = rig.environ(devices=2, total_bytes=80 << 30, state=tmp_path / "gpus")
    service = Service(environ)
    port = free_port()
    config = tmp_path / "alertmanager.yml"
    config.write_text(
        CONFIG.read_text()
        .replace("127.0.0.1:9496", f"127.0.0.1:{port}")
        .replace("group_wait: 5s", "group_wait: 1s")
        .replace("group_interval: 1m", "group_interval: 1s")
    )
    with (
        FakeSlack() as slack,
        grafana_server(role="Editor") as grafana,
        running_alertmanager(tmp_path, config) as alertmanager,
    ):
        slack.add_user(OWNER)
        (tmp_path / "users.yaml").write_text(f"root: {OWNER}\n")
        for name, text in (("slack-token", slack.token), ("grafana-token", TOKEN)):
            (tmp_path / name).write_text(text)
            (tmp_path / name).chmod(0o600)
        service.environ |= {
            "TIDEGAUGE_ALERTMANAGER_URL": alertmanager.url,
            "TIDEGAUGE_NOTIFY_PORT": str(port),
            "TIDEGAUGE_SLACK_API_URL": slack.api_url,
            "TIDEGAUGE_SLACK_TOKEN_FILE": str(tmp_path / "slack-token"),
            "TIDEGAUGE_SLACK_CHANNEL": CHANNEL,
            "TIDEGAUGE_SLACK_USERS_FILE": str(tmp_path / "users.yaml"),
            "TIDEGAUGE_GRAFANA_URL": grafana.url,
            "TIDEGAUGE_GRAFANA_TOKEN_FILE": str(tmp_path / "grafana-token"),
            "TIDEGAUGE_PUBLIC_URL": "http://head.example:9495",
        }
        site = Site(service, str(rig.python), environ, tmp_path)
        site.set_mode("act")
        try:
            service.up()
            yield Town(site, slack, grafana, alertmanager)
        finally:
            service.close()


def test_leak_is_told_to_the_owner_to_the_channel_and_to_grafana_once(town: Town) -> None:
    with town.site.job("leaky", "--leak-rank", "1", steps=15_000) as leaky:
        incident = eventually(lambda: town.site.incidents("leaky"), "an incident", within_s=200)[0]
        number = incident["number"]
        try:
            thread = eventually(lambda: town.thread_of(number), "a thread in the channel")
            assert "rank 1" in thread.parent.words
            assert f"http://head.example:9495/report?incident={number}" in str(thread.parent.blocks)
            assert f"{town.grafana.url}/d/tidegauge-job?" in str(thread.parent.blocks)
            # Whom the notifier tells first is its own affair.
            town.alertmanager.wait_for(
                lambda found: [alert["labels"]["cause"] for alert in found] == ["leak"],
                alertname="TidegaugeIncident",
                incident=str(number),
            )

            # Whoever tells people may die at any moment: nobody hears anything twice that Slack has confirmed.
            eventually(town.has_written_down_all, "that the notifier has written down what it told")
            for pid in town.notifiers():
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: len(leaky.told("began")) > 1, "the second attempt", within_s=240)
            thread = eventually(
                lambda: now if (now := town.thread_of(number)) and "closed" in now.parent.words.lower() else None,
                "the end of the story in the channel",
            )  # fmt: skip
        except AssertionError as error:
            raise AssertionError(f"{error}\n{last_lines(leaky.log, 10)}\n{town.site.service.logs()}") from error

    # The head is changed at once, its replies follow at Slack's pace.
    parts = ["has saved a checkpoint", "starts again", "closed:"]
    history = eventually(lambda: town.site.service.get(f"/api/v1/incident?number={number}")["history"], "the history")
    if "escalated" in [change["kind"] for change in history]:  # else nobody looked while it was a suspicion
        parts.append("severity rose to critical")
    thread = eventually(
        lambda: now if (now := town.thread_of(number)) and all(_is_told(part, now) for part in parts) else None,
        f"replies that say {parts}",
    )
    eventually(lambda: (now := town.thread_of(number)) and _has_plot(now), "a plot in the channel")

    # The owner: both warnings with what comes next, and what was done.
    first, *_ = eventually(lambda: town.slack.direct_threads(OWNER), "a direct message")
    assert "rank 1" in first.parent.words.lower()
    eventually(lambda: any(_is_told("saved", each) for each in town.slack.direct_threads(OWNER)), "what was done")
    eventually(lambda: any(_has_plot(each) for each in town.slack.direct_threads(OWNER)), "a plot for the owner")
    # Of this incident: the next attempt leaks too, and may be warned by now.
    decisions = [one["decision"] for one in town.site.decisions("leaky")]
    notified = [one for one in decisions if one["action"] == "notify" and one["incident"]["number"] == number]
    eventually(
        lambda: len(town.slack.direct_threads(OWNER)) >= len(notified) - 1,
        "what was missed while the notifier was away is told later",
    )

    # Grafana: the incident as a region, the actions as points.
    eventually(lambda: any("action:requeue" in each["tags"] for each in town.grafana.annotations.values()), "a mark")
    of_it = {"tidegauge", f"incident:{number}"}
    eventually(lambda: sum(of_it <= set(one["tags"]) for one in town.grafana.annotations.values()) >= 2, "two marks")

    # Once each, although the notifier was killed; one message may be repeated if it died between post and note.
    thread = eventually(lambda: town.thread_of(number), "the thread")
    lines = [reply.words for reply in thread.replies if not reply.file]
    assert len(lines) - len(set(lines)) <= 1, lines


def _is_told(part: str, thread: Thread) -> bool:
    return any(part in reply.words.lower() for reply in thread.replies)


def _has_plot(thread: Thread) -> bool:
    return any(reply.file and reply.file.content.startswith(PNG) for reply in thread.replies)


@turn(1)
def test_dead_slack_holds_up_nothing(town: Town) -> None:
    town.slack.fail("chat.postMessage", "token_revoked", times=10_000)
    with town.site.job("leaky", "--leak-rank", "1", steps=15_000) as leaky:
        eventually(lambda: len(leaky.told("began")) > 1, "the second attempt", within_s=300)
        actions = eventually(lambda: to_the_requeue(done(town.site.decisions("leaky"))), "the requeue is done")
        records = town.site.decisions("leaky")
    assert actions[-4:] == ["notify", "notify", "checkpoint", "requeue"]
    told = [record for record in records if record["decision"]["action"] == "notify" and record["outcome"] is not None]
    notified = [record["detail"] for record in told]
    assert all("job output" in detail and "not delivered" in detail for detail in notified), notified
    eventually(lambda: town.grafana.annotations, "a mark")
    eventually(lambda: "token" in (_telling(town) or "").lower(), "how Grafana and Slack stand")
    assert town.slack.messages == []


def _telling(town: Town) -> str | None:
    """The status' line about the notifier, once that says that Grafana takes what it is told."""
    lines = town.site.service.call("status").out.splitlines()
    return next((line for line in lines if line.startswith("notifiers") and "grafana: ok" in line), None)
