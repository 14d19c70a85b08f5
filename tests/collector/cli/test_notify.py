"""``tidegauge notify`` against a Slack with state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fakes.fake_slack import FakeSlack
from tidegauge.cli.main import main

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as slack:
        slack.add_user("ada@example.org")
        yield slack


@pytest.fixture
def say(slack: FakeSlack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Say:
    monkeypatch.setenv("TIDEGAUGE_SLACK_TOKEN", slack.token)
    monkeypatch.setenv("TIDEGAUGE_SLACK_API_URL", slack.api_url)
    monkeypatch.setenv("TIDEGAUGE_SLACK_EMAIL_DOMAIN", "example.org")

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["notify", *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_channel_and_user_hear_a_word(slack: FakeSlack, say: Say) -> None:
    code, out = say("--set", "slack_channel=#gpu-memory", "--user", "ada")
    assert (code, out) == (0, "channel #gpu-memory: message sent\nuser ada: message sent\n")
    (thread,) = slack.threads("#gpu-memory")
    assert "This is a test message from Tidegauge" in thread.parent.text
    assert len(slack.direct_threads("ada@example.org")) == 1


def test_notify_reports_a_failing_channel_and_sends_the_rest(slack: FakeSlack, say: Say) -> None:
    code, out = say("--set", "slack_channel=#nowhere", "--user", "ada")
    assert code == 1
    assert "channel #nowhere: " in out.splitlines()[0]
    assert "told" not in out.splitlines()[0]
    assert out.splitlines()[1] == "user ada: message sent"


def test_user_whom_nobody_knows_is_named(say: Say) -> None:
    code, out = say("--user", "eve")
    assert (code, "user eve: no Slack account" in out, "slack_users_file" in out) == (1, True, True)


@pytest.mark.parametrize("missing", ["TIDEGAUGE_SLACK_TOKEN", None])
def test_missing_settings_are_named(say: Say, monkeypatch: pytest.MonkeyPatch, missing: str | None) -> None:
    if missing:
        monkeypatch.delenv(missing)
    code, out = say(*(["--user", "ada"] if missing else []))
    assert code == 2
    assert ("slack_token_file" if missing else "slack_channel") in out


def test_the_app_level_token_is_tried_and_the_buttons_are_named(
    slack: FakeSlack, say: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGAUGE_SLACK_APP_TOKEN", slack.app_token)
    slack.socket_url = "wss://wss-primary.slack.com/link/?ticket=secret"
    code, out = say("--user", "ada")
    assert code == 0
    assert "buttons: Slack accepts the app-level token; owners get Acknowledge, " in out
    assert "secret" not in out
    monkeypatch.setenv("TIDEGAUGE_SLACK_APP_TOKEN", "xapp-wrong")
    code, out = say("--user", "ada")
    assert (code, "slack_app_token_file" in out, "xapp-wrong" in out) == (1, True, False)


def test_token_is_never_shown(slack: FakeSlack, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGAUGE_SLACK_TOKEN", "xoxb-wrong-one")
    code, out = say("--user", "ada")
    assert (code, "xoxb-wrong-one" in out) == (1, False)
    assert "invalid_auth" in out
