"""What the check of the token and its scopes says, before anything is sent to people."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.fake_slack import FakeSlack, Fault
from fakes.slack_chats import Clock, make_chat
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.slack.client import SlackChat
from tidegauge_exporter.slack.people import People


def test_check_accepts_a_token_with_all_scopes_and_sends_nothing(slack: FakeSlack, chat: SlackChat) -> None:
    chat.check(owners=True, plots=True)
    assert [method for method, _ in slack.calls] == ["auth.test"]
    assert slack.messages == []


def test_check_says_how_to_mend_a_token_that_is_rejected(slack: FakeSlack, clock: Clock) -> None:
    with pytest.raises(RefusedError, match=r"rejects the token.*slack_token_file.*invalid_auth"):
        make_chat(slack, clock, token="xoxb-revoked").check(owners=False, plots=False)


@pytest.mark.parametrize(
    ("missing", "owners", "plots", "is_said"),
    [
        ("chat:write", False, False, True),
        ("files:write", False, True, True),
        ("files:write", False, False, False),
        ("im:write", True, False, True),
        ("im:write", False, True, False),
        ("users:read.email", True, False, True),
        ("users:read.email", False, True, False),
    ],
)
def test_check_names_a_missing_scope_of_what_is_used_alone(
    slack: FakeSlack, chat: SlackChat, missing: str, owners: bool, plots: bool, is_said: bool
) -> None:
    slack.scopes.remove(missing)
    if not is_said:
        chat.check(owners=owners, plots=plots)
        return
    with pytest.raises(RefusedError, match=rf"lacks {missing} \(auth.test\): add it under OAuth & Permissions"):
        chat.check(owners=owners, plots=plots)


def test_owners_who_are_known_by_id_need_no_scope_for_emails(slack: FakeSlack, clock: Clock, tmp_path: Path) -> None:
    (tmp_path / "users.yaml").write_text("ada: U024BE7LH\n")
    slack.scopes -= {"users:read.email"}
    chat = make_chat(slack, clock, people=People(tmp_path / "users.yaml", None))
    chat.check(owners=True, plots=True)
    (tmp_path / "users.yaml").write_text("ada: ada@example.org\n")
    with pytest.raises(RefusedError, match=r"users:read\.email"):
        chat.check(owners=True, plots=True)


def test_a_gateway_that_hides_the_scopes_is_no_problem(slack: FakeSlack, chat: SlackChat) -> None:
    slack.down["auth.test"] = Fault(200, {"ok": True})
    chat.check(owners=True, plots=True)


def test_a_slack_that_fails_is_checked_again_later(slack: FakeSlack, chat: SlackChat) -> None:
    slack.down["auth.test"] = Fault(503, "<html>")
    with pytest.raises(RetryLaterError, match=r"auth\.test with HTTP 503"):
        chat.check(owners=True, plots=True)
