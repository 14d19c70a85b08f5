from __future__ import annotations

import json
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporter.notify.telling import LINKS, story, warning
from exporter.notify.test_alertmanager import FakeAlertmanager, running
from exporter.notify.test_receiver import ask
from exporter.notify.test_webhook import NOTIFICATION
from exposition_text import parse_text
from fakes.fake_slack import FakeSlack
from fakes.smtp_server import FakeSmtp
from scheduler_values import decision, record
from tidegauge.core.incidents.actions import Outcome
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge.core.version import __version__
from tidegauge_exporter.messages.pseudonyms import story_with_pseudonym
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify import notifier
from tidegauge_exporter.notify.deliveries import DeliveryOutcome
from tidegauge_exporter.notify.delivery_journal import DeliveryJournalError
from tidegauge_exporter.notify.owner import tell_owner
from tidegauge_exporter.open_notifier import NotifyConfig, NotifyService, open_notifier
from waiting import PATIENCE_S, eventually

TOKEN = "xoxb-of-the-tests"


class Feed:
    def __init__(self, *stories: Story) -> None:
        self.told = stories

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        return self.told


def config(folder: Path, **changes: Any) -> NotifyConfig:
    return replace(NotifyConfig(cluster="rose", state_dir=folder, links=LINKS), **changes)


@contextmanager
def started(config: NotifyConfig, feed: Feed) -> Iterator[NotifyService]:
    service = open_notifier(config, feed)
    service.start()
    try:
        yield service
    finally:
        service.stop()


def problems(service: NotifyService) -> dict[str, str | None]:
    return {part.name: part.problem for part in service.status().sinks}


def test_alertmanager_is_told_first_and_slack_when_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier, "FETCH_EVERY_S", 0.02)
    slack, alertmanager, now_s = FakeSlack(), FakeAlertmanager(), time.time()
    slack.add_user("ada@example.org")
    told = warning(12, opened_unix_s=now_s, updated_unix_s=now_s)
    with slack, running(alertmanager):
        settings = config(
            tmp_path, alertmanager_url=alertmanager.url, slack_token=TOKEN, slack_api_url=slack.api_url,
            slack_channel="#gpu-memory", slack_email_domain="example.org",
        )  # fmt: skip
        with started(settings, Feed(told)) as service:
            eventually(lambda: bool(alertmanager.requests))
            assert alertmanager.alerts[0]["labels"]["incident"] == "12"
            assert slack.threads("#gpu-memory") == []
            status, _ = ask(service, "POST", "/alerts", json.dumps(NOTIFICATION).encode())
            assert status == 200
            eventually(lambda: bool(slack.threads("#gpu-memory")))
            assert tell_owner(service.owners, decision(), told) == "Slack DM"
            assert len(slack.direct_threads("ada@example.org")) == 1
            eventually(lambda: bool(slack.threads("#gpu-memory")[0].replies))
            eventually(lambda: all(part.is_tried for part in service.status().sinks))
            assert problems(service) == {"alertmanager": None, "slack": None, "slack owners": None}
    assert "4712" in slack.threads("#gpu-memory")[0].parent.words


def test_pseudonyms_stand_for_users_where_everybody_reads_and_owners_are_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "FETCH_EVERY_S", 0.02)
    slack, alertmanager, now_s = FakeSlack(), FakeAlertmanager(), time.time()
    slack.add_user("ada@example.org")
    told = warning(12, opened_unix_s=now_s, updated_unix_s=now_s, explanation="a job of ada grows")
    known = Pseudonyms(b"1" * 32)
    with slack, running(alertmanager):
        settings = config(
            tmp_path, alertmanager_url=alertmanager.url, slack_token=TOKEN, slack_api_url=slack.api_url,
            slack_channel="#gpu-memory", slack_email_domain="example.org", pseudonyms=known,
        )  # fmt: skip
        with started(settings, Feed(told)) as service:
            eventually(lambda: bool(alertmanager.requests))
            (alert, *_) = alertmanager.alerts
            assert alert["labels"]["user_name"] == known.of("ada")
            assert "ada" not in alert["annotations"]["description"].split()
            assert ask(service, "POST", "/alerts", json.dumps(NOTIFICATION).encode())[0] == 200
            eventually(lambda: bool(slack.threads("#gpu-memory")))
            assert tell_owner(service.owners, decision(), told) == "Slack DM"
            assert len(slack.direct_threads("ada@example.org")) == 1
    words = slack.threads("#gpu-memory")[0].parent.words
    assert known.of("ada") in words
    assert "ada" not in words.replace("`", " ").split()


def test_a_story_with_a_pseudonym_has_the_name_nowhere() -> None:
    known = Pseudonyms(b"1" * 32)
    told = story(12, explanation="a job of ada grows")
    made = record(decision(reason="ada's job leaks"), Outcome.FAILED, detail="no email address known for user 'ada'")
    act = PersonAct("r", 12, ActKind.ACKNOWLEDGE, "ada", False, 0.0, sender="T0/U1", detail="ada said so")
    shown = story_with_pseudonym(replace(told, decisions=(made,), acts=(act,)), known)
    assert [(one.by, one.sender, one.detail) for one in shown.acts] == [(known.of("ada"), None, None)]
    names = {shown.incident.user_name, *(line.incident.user_name for line in shown.history)}
    (done,) = shown.decisions
    assert names | {done.decision.facts.user_name, done.decision.incident.user_name} == {known.of("ada")}
    assert "ada" not in f"{shown.incident.explanation} {done.decision.reason} {done.detail}".replace("'", " ").split()


def test_notifier_without_sinks_does_nothing(tmp_path: Path) -> None:
    with started(config(tmp_path), Feed()) as service:
        assert (service.owners, service.status().sinks) == ((), ())


def test_without_a_channel_owners_still_get_their_messages_and_alerts_are_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, slack_token=TOKEN, slack_api_url="http://127.0.0.1:9/api/")
    with started(settings, Feed()) as service:
        assert list(problems(service)) == ["slack owners"]
        status, said = ask(service, "POST", "/alerts", json.dumps(NOTIFICATION).encode())
    assert status == 404
    assert "set slack_token_file and slack_channel" in said["error"]


def scraped(service: NotifyService) -> dict[tuple[str, ...], float]:
    """The samples of the notifier's page, by name and the values of their labels but the cluster's."""
    with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics", timeout=PATIENCE_S) as answer:
        families = parse_text(answer.read().decode())
    return {
        (sample.name, *(value for name, value in sorted(sample.labels.items()) if name != "cluster")): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_count_what_was_sent_to_each_receiver_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifier, "FETCH_EVERY_S", 0.02)
    now_s = time.time()
    feed = Feed()
    with FakeSlack() as slack:
        settings = config(
            tmp_path, slack_token=TOKEN, slack_api_url=slack.api_url, slack_channel="#gpu-memory",
            slack_email_domain="example.org", grafana_url="nowhere", grafana_token="glsa_x",
        )  # fmt: skip
        with started(settings, feed) as service:
            eventually(lambda: all(part.is_tried for part in service.status().sinks))
            before = scraped(service)
            for sink in ("slack", "slack owners", "grafana"):
                for outcome in DeliveryOutcome:
                    assert before["tidegauge_notifications_total", outcome.value, sink] == 0.0
                assert before["tidegauge_notifications_pending", sink] == 0.0
                assert before["tidegauge_notifications_oldest_pending_seconds", sink] == 0.0
                assert before["tidegauge_notification_sink_works", sink] == (sink != "grafana")
            assert ("tidegauge_notification_last_success_timestamp_seconds", "slack") not in before
            assert before["tidegauge_collect_success", "stories"] == 1.0
            assert ("tidegauge_build_info", __version__) in before
            assert ("process_resident_memory_bytes",) in before
            feed.told = (warning(12, opened_unix_s=now_s, updated_unix_s=now_s),)
            eventually(lambda: bool(slack.threads("#gpu-memory")) and bool(slack.threads("#gpu-memory")[0].replies))
            eventually(lambda: scraped(service)["tidegauge_notifications_pending", "slack"] == 0.0)
            after = scraped(service)
    assert after["tidegauge_notifications_total", "delivered", "slack"] == 2.0
    assert after["tidegauge_notification_last_success_timestamp_seconds", "slack"] >= now_s
    assert after["tidegauge_notifications_total", "delivered", "slack owners"] == 0.0


def test_a_token_that_slack_rejects_is_said_at_the_start_before_any_incident(tmp_path: Path) -> None:
    with FakeSlack() as slack:
        settings = config(
            tmp_path, slack_token="xoxb-revoked", slack_api_url=slack.api_url, slack_channel="#gpu-memory",
            slack_email_domain="example.org",
        )  # fmt: skip
        with started(settings, Feed()) as service:
            eventually(lambda: all(part.problem for part in service.status().sinks))
            assert all("Slack rejects the token" in (said or "") for said in problems(service).values())
            assert scraped(service)["tidegauge_notification_sink_works", "slack"] == 0.0


def test_grafana_is_told_with_a_token_only(tmp_path: Path) -> None:
    settings = config(tmp_path, grafana_url="http://127.0.0.1:3000")
    service = open_notifier(settings, Feed())
    assert problems(service) == {}
    service.stop()
    service = open_notifier(replace(settings, grafana_token="glsa_x"), Feed())
    assert problems(service) == {"grafana": None}


def test_notifier_reports_a_misconfigured_sink_and_starts_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = config(tmp_path, alertmanager_url="head:9093", slack_token=TOKEN, slack_channel="#gpu-memory")
    service = open_notifier(settings, Feed())
    found = problems(service)
    assert "looks like http://127.0.0.1:9093" in (found["alertmanager"] or "")
    assert found["slack"] is None
    assert "alertmanager is left out" in caplog.text


def test_a_missing_extra_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tidegauge_exporter.slack.client", raising=False)
    monkeypatch.setitem(sys.modules, "slack_sdk", None)
    service = open_notifier(config(tmp_path, slack_token=TOKEN, slack_channel="#gpu-memory"), Feed())
    assert problems(service) == {"slack": "slack_sdk is not installed: pip install 'tidegauge[slack]'"}


def test_a_port_that_is_taken_is_said_and_stops_nothing_else(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = config(
            tmp_path, alertmanager_url="http://127.0.0.1:9", slack_token=TOKEN, slack_channel="#gpu-memory",
            slack_api_url="http://127.0.0.1:9/api/", notify_port=taken.getsockname()[1],
        )  # fmt: skip
        with started(settings, Feed()) as service:
            assert "in use" in (problems(service)["alerts"] or "")
            assert service.port is None


def test_no_token_is_ever_printed(tmp_path: Path) -> None:
    assert "secret" not in repr(
        config(tmp_path, slack_token="secret-one", grafana_token="secret-two", mail_password="secret-three")
    )


def test_a_second_notifier_on_one_state_directory_is_refused_until_the_first_has_stopped(tmp_path: Path) -> None:
    with started(config(tmp_path), Feed()), pytest.raises(DeliveryJournalError, match="another notifier"):
        open_notifier(config(tmp_path), Feed())
    open_notifier(config(tmp_path), Feed())


def test_a_notebook_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    service = open_notifier(config(tmp_path / "gone"), Feed())
    assert "cannot be written" in (problems(service)["notebook"] or "")


def test_owners_are_told_by_mail_where_a_server_is_set(tmp_path: Path) -> None:
    with FakeSmtp(login=("tidegauge", "x")) as smtp:
        settings = config(
            tmp_path, mail_server=f"127.0.0.1:{smtp.port}", mail_from="tidegauge@example.org",
            mail_domain="example.org", mail_user="tidegauge", mail_password="x",
        )  # fmt: skip
        with started(settings, Feed()) as service:
            assert tell_owner(service.owners, decision(), warning(12)) == "email"
            assert problems(service) == {"mail": None}
    (one,) = smtp.delivered
    assert (one.sender, one.recipient, one.user) == ("tidegauge@example.org", "ada@example.org", "tidegauge")
    assert one.mail["Subject"] == "Memory growth in your job 4712 (incident 12 on rose)"
    assert "job 4712" in one.text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"mail_from": None}, "mail_from is not: which address do mails come from"),
        ({"mail_from": "nobody"}, "mail_from is 'nobody'"),
        ({"mail_domain": "a b"}, "mail_domain is 'a b'"),
        ({"mail_server": "smtp://mail"}, "mail_server is 'smtp://mail'"),
        ({"mail_user": "ada"}, "mail_user and mail_password_file belong together"),
        ({"mail_password": "secret-three"}, "mail_user and mail_password_file belong together"),
    ],
)
def test_mail_settings_that_cannot_be_used_are_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    whole = {"mail_server": "mail.example.org", "mail_from": "tidegauge@example.org"} | changes
    service = open_notifier(config(tmp_path, **whole), Feed())
    assert service.owners == ()
    assert said in (problems(service)["mail"] or "")
    assert "secret" not in str(problems(service))
