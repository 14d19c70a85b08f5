"""What the coordinator knows of the notifier, and how its word becomes the port of the closed loop."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.fake_slack import FakeSlack
from fakes.smtp_server import FakeSmtp
from scheduler_values import decision
from tidegauge.cluster.incident_loops.action_loop import _messenger
from tidegauge.cluster.incident_loops.notifying import (
    SILENT_AFTER_S,
    OwnerNotified,
    TellingBoard,
    is_notifier_wanted,
    tells_owners,
)
from tidegauge.cluster.ray_service.notifier import NOT_TRIED, NotifierService, notify_config, read_secrets
from tidegauge.cluster.service_record import StateFiles
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.settings import Settings
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError
from waiting import eventually


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_telling_board_is_empty_without_a_configured_sink() -> None:
    assert TellingBoard(monotonic_s=Clock()).read() == {}


def test_last_word_stands_until_the_notifier_falls_silent() -> None:
    clock = Clock()
    board = TellingBoard(monotonic_s=clock)
    board.expect()
    assert board.read() == {"notifier": "starting"}
    board.say({"slack": "ok", "grafana": "401 Unauthorized"})
    clock.now_s += SILENT_AFTER_S
    assert board.read() == {"slack": "ok", "grafana": "401 Unauthorized"}
    clock.now_s += 1
    assert board.read() == {"notifier": "no report for 61 s; see notifier.log on the head"}


def test_notifier_that_never_starts_is_missed() -> None:
    clock = Clock()
    board = TellingBoard(monotonic_s=clock)
    board.expect()
    clock.now_s += SILENT_AFTER_S + 1
    assert "no report for" in board.read()["notifier"]


NOTIFY = decision(ActionKind.NOTIFY)


def test_messenger_returns_where_the_owner_was_notified() -> None:
    assert _messenger(lambda _: OwnerNotified(where="on Slack")).tell(NOTIFY) == "on Slack"


def test_messenger_reports_a_retryable_failure_as_temporary() -> None:
    with pytest.raises(TemporaryError, match="rate limit") as caught:
        _messenger(lambda _: OwnerNotified(problem="rate limit", retry_after_s=7.0)).tell(NOTIFY)
    assert caught.value.retry_after_s == 7.0


def test_messenger_reports_a_failure_without_retry_as_permanent() -> None:
    with pytest.raises(PermanentError, match="nobody knows ada"):
        _messenger(lambda _: OwnerNotified(problem="nobody knows ada on Slack")).tell(NOTIFY)


@pytest.mark.parametrize(
    ("settings", "environ", "wanted", "owners"),
    [
        ({}, {}, False, False),
        ({"grafana_url": "http://g"}, {}, False, False),
        ({"grafana_url": "http://g"}, {"TIDEGAUGE_GRAFANA_TOKEN": "t"}, True, False),
        ({"grafana_token_file": "/t"}, {}, False, False),
        ({"alertmanager_url": "http://a"}, {}, True, False),
        ({"slack_token_file": "/t"}, {}, True, True),
        ({"mail_server": "mail.example.org"}, {}, True, True),
        ({}, {"TIDEGAUGE_SLACK_TOKEN": "t"}, True, True),
        ({}, {"TIDEGAUGE_SLACK_TOKEN": ""}, False, False),
    ],
)
def test_notifier_is_there_only_where_somebody_is_to_be_told(
    settings: dict[str, str], environ: dict[str, str], wanted: bool, owners: bool
) -> None:
    made = Settings.model_validate(settings)
    assert (is_notifier_wanted(made, environ), tells_owners(made, environ)) == (wanted, owners)


def test_notifier_outlives_an_engine_that_cannot_pass_on_its_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[Mapping[str, str]] = []

    def say(standing: Mapping[str, str]) -> None:
        said.append(standing)
        if len(said) == 1:
            raise RuntimeError("the engine is being restarted")

    service = NotifierService(Settings(notify_port=0), StateFiles(tmp_path), {}, say=say)
    service.turn()
    service.turn()
    service.stop()
    assert len(said) == 2
    assert caplog.text.count("a notifier pass failed") == 1


def test_mail_settings_reach_the_notifier_with_the_password_of_the_file(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("correct-horse\n")
    password.chmod(0o600)
    settings = Settings(
        mail_server="mail.example.org:587", mail_from="tidegauge@example.org", mail_domain="example.org",
        mail_user="tidegauge", mail_password_file=password,
    )  # fmt: skip
    made = notify_config(settings, StateFiles(tmp_path), read_secrets(settings, {}))
    assert (made.mail_server, made.mail_from) == ("mail.example.org:587", "tidegauge@example.org")
    assert (made.mail_domain, made.mail_user, made.mail_password) == ("example.org", "tidegauge", "correct-horse")
    in_the_environment = Settings(mail_server="mail.example.org")
    secrets = read_secrets(in_the_environment, {"TIDEGAUGE_MAIL_PASSWORD": "battery-staple"})
    made = notify_config(in_the_environment, StateFiles(tmp_path), secrets)
    assert made.mail_password == "battery-staple"


def secret_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def after_turns(service: NotifierService) -> dict[str, str]:
    """The status once everything was tried."""
    service.turn()
    eventually(lambda: NOT_TRIED not in service.standing().values())
    return dict(service.standing())


def test_a_slack_token_that_is_corrected_in_its_file_works_without_a_restart(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "slack-token", "xoxb-revoked")
    with FakeSlack() as slack:
        settings = Settings(slack_token_file=token, slack_api_url=slack.api_url, slack_channel="#gpu", notify_port=0)
        service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
        try:
            found = after_turns(service)
            assert set(found) == {"slack", "slack owners", "service"}
            assert "Slack rejects the token" in found["slack"]
            secret_file(token, slack.token)
            found = after_turns(service)
            assert (found["slack"], found["slack owners"]) == ("ok", "ok")
        finally:
            service.stop()


def test_a_mail_password_that_is_corrected_in_its_file_works_without_a_restart(tmp_path: Path) -> None:
    password = secret_file(tmp_path / "mail-password", "wrong")
    with FakeSmtp(login=("tidegauge", "battery-staple")) as smtp:
        settings = Settings(
            mail_server=f"127.0.0.1:{smtp.port}", mail_from="tidegauge@example.org", mail_user="tidegauge",
            mail_password_file=password, notify_port=0,
        )  # fmt: skip
        service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
        try:
            assert "does not take the login of mail_user" in after_turns(service)["mail"]
            secret_file(password, "battery-staple")
            assert after_turns(service)["mail"] == "ok"
        finally:
            service.stop()


def test_a_token_file_that_becomes_unusable_is_said_and_the_token_stays_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = secret_file(tmp_path / "slack-token", "xoxb-of-the-tests")
    with FakeSlack() as slack:
        settings = Settings(slack_token_file=token, slack_api_url=slack.api_url, slack_channel="#gpu", notify_port=0)
        service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
        try:
            assert "notifier" not in after_turns(service)
            token.chmod(0o644)
            found = [after_turns(service) for _ in range(2)][-1]
            assert "run chmod 600" in found["notifier"]
            assert "stays in force" in found["notifier"]
            assert found["slack"] == "ok"
            assert caplog.text.count("run chmod 600") == 1
            token.chmod(0o600)
            assert "notifier" not in after_turns(service)
        finally:
            service.stop()


def test_a_token_file_that_is_unusable_from_the_start_stops_its_receiver_alone(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "slack-token", "xoxb-of-the-tests")
    token.chmod(0o644)
    with FakeSlack() as slack, FakeSmtp() as smtp:
        settings = Settings(
            slack_token_file=token, slack_api_url=slack.api_url, slack_channel="#gpu", notify_port=0,
            mail_server=f"127.0.0.1:{smtp.port}", mail_from="tidegauge@example.org",
        )  # fmt: skip
        service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
        try:
            found = after_turns(service)
            assert found["mail"] == "ok"
            assert "run chmod 600" in found["slack"]
            assert "notifier" not in found
            token.chmod(0o600)
            found = after_turns(service)
            assert (found["mail"], found["slack"]) == ("ok", "ok")
        finally:
            service.stop()


def test_a_token_is_used_while_the_file_of_another_is_unusable(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "slack-token", "xoxb-revoked")
    password = secret_file(tmp_path / "mail-password", "battery-staple")
    with FakeSlack() as slack, FakeSmtp(login=("tidegauge", "battery-staple")) as smtp:
        settings = Settings(
            slack_token_file=token, slack_api_url=slack.api_url, slack_channel="#gpu", notify_port=0,
            mail_server=f"127.0.0.1:{smtp.port}", mail_from="tidegauge@example.org", mail_user="tidegauge",
            mail_password_file=password,
        )  # fmt: skip
        service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
        try:
            assert "Slack rejects the token" in after_turns(service)["slack"]
            password.chmod(0o644)
            secret_file(token, slack.token)
            found = [after_turns(service) for _ in range(2)][-1]
            assert (found["slack"], found["mail"]) == ("ok", "ok")
            assert "mail-password has mode 0644" in found["notifier"]
        finally:
            service.stop()


def test_without_a_usable_token_an_owner_is_notified_later(tmp_path: Path) -> None:
    token = secret_file(tmp_path / "slack-token", "")
    settings = Settings(slack_token_file=token, slack_channel="#gpu", notify_port=0)
    service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
    try:
        service.turn()
        told = service.tell(NOTIFY)
        assert told.retry_after_s is not None
        assert "slack-token is empty" in str(told.problem)
    finally:
        service.stop()


def test_a_webhook_whose_password_is_unusable_is_not_open(tmp_path: Path) -> None:
    password = secret_file(tmp_path / "notify-token", "")
    settings = Settings(notify_token_file=password, alertmanager_url="http://127.0.0.1:9", notify_port=0)
    service = NotifierService(settings, StateFiles(tmp_path), {}, say=lambda _: None)
    service.turn()
    assert set(service.standing()) == {"notifier"}
    assert "notify-token is empty" in service.standing()["notifier"]
    service.stop()
