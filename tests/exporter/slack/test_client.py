"""``SlackChat`` against a Slack on a loopback port: what is sent, and what every kind of refusal becomes."""

from __future__ import annotations

import gc
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.fake_slack import FakeSlack, Fault
from fakes.slack_chats import CHANNEL, HELLO, PNG, Clock, make_chat
from tidegauge_exporter.notify.ports import Message, Posted, RefusedError, RetryLaterError
from tidegauge_exporter.slack.client import STRANGER_FOR_S, SlackChat
from tidegauge_exporter.slack.people import People


def test_a_message_and_its_replies_are_a_thread(slack: FakeSlack, chat: SlackChat) -> None:
    parent = chat.post(CHANNEL, HELLO)
    chat.post(parent.channel, Message("first"), thread=parent)
    chat.post(CHANNEL, Message("second"), thread=parent)
    (thread,) = slack.threads(CHANNEL)
    assert parent == Posted(slack.channels[CHANNEL], thread.parent.ts)
    assert thread.parent.blocks == list(HELLO.blocks)
    assert [reply.text for reply in thread.replies] == ["first", "second"]


def test_a_reply_may_be_shown_beside_its_thread_too(slack: FakeSlack, chat: SlackChat) -> None:
    parent = chat.post(CHANNEL, HELLO, beside_thread=True)
    chat.post(parent.channel, Message("in the thread"), thread=parent)
    chat.post(parent.channel, Message("beside it"), thread=parent, beside_thread=True)
    (thread,) = slack.threads(CHANNEL)
    shown = [message.options.get("reply_broadcast") for message in (thread.parent, *thread.replies)]
    assert shown == [None, None, True]


def test_slack_client_disables_links_mentions_and_unfurling(slack: FakeSlack, chat: SlackChat) -> None:
    chat.post(CHANNEL, HELLO)
    assert slack.messages[0].options == {
        "parse": "none",
        "link_names": False,
        "mrkdwn": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def test_an_update_replaces_a_message(slack: FakeSlack, chat: SlackChat) -> None:
    posted = chat.post(CHANNEL, HELLO)
    chat.update(posted, Message("over"))
    (thread,) = slack.threads(CHANNEL)
    assert (thread.parent.text, thread.parent.blocks, thread.parent.edits) == ("over", [], 1)
    assert slack.called("chat.update")[0]["parse"] == "none"


def test_a_message_that_somebody_deleted_stays_deleted(slack: FakeSlack, chat: SlackChat) -> None:
    posted = chat.post(CHANNEL, HELLO)
    slack.delete(posted.ts)
    chat.update(posted, Message("over"))
    assert slack.messages == []


def test_a_plot_is_a_reply_with_a_text_for_those_who_cannot_see_it(slack: FakeSlack, chat: SlackChat) -> None:
    parent = chat.post(CHANNEL, HELLO)
    chat.upload(PNG, title="memory of rank 3", alt_text="a line that rises", thread=parent)
    (reply,) = slack.threads(CHANNEL)[0].replies
    assert reply.file is not None
    assert (reply.file.content, reply.file.title, reply.file.alt_text) == (PNG, "memory of rank 3", "a line that rises")


@pytest.mark.parametrize(
    ("stage", "status"),
    [
        ("files.getUploadURLExternal", 200),
        ("files.getUploadURLExternal", 500),
        ("upload", 404),
        ("upload", 500),
        ("files.completeUploadExternal", 200),
        ("files.completeUploadExternal", 500),
    ],
)
def test_a_plot_that_fails_at_any_stage_leaves_the_message(
    slack: FakeSlack, chat: SlackChat, stage: str, status: int
) -> None:
    parent = chat.post(CHANNEL, HELLO)
    slack.fail(stage, "internal_error", status=status)
    with pytest.raises(RetryLaterError):
        chat.upload(PNG, title="t", alt_text="a", thread=parent)
    (thread,) = slack.threads(CHANNEL)
    assert thread.parent.text == "hello"
    assert thread.replies == []


class TestDirect:
    def test_an_owner_is_found_by_e_mail(self, slack: FakeSlack, chat: SlackChat) -> None:
        slack.add_user("ada@example.org")
        channel = chat.direct("ada")
        assert channel is not None
        chat.post(channel, HELLO)
        assert slack.direct_threads("ada@example.org")[0].parent.text == "hello"

    def test_an_owner_is_found_by_id(self, slack: FakeSlack, clock: Clock, tmp_path: Path) -> None:
        user = "U024BE7LH"
        slack.users["somebody@else.example"] = user
        (tmp_path / "users.yaml").write_text(f"ada: {user}\n")
        chat = make_chat(slack, clock, people=People(tmp_path / "users.yaml", None))
        assert chat.direct("ada") == slack.conversations[user]
        assert slack.called("users.lookupByEmail") == []

    def test_slack_is_asked_once(self, slack: FakeSlack, chat: SlackChat) -> None:
        slack.add_user("ada@example.org")
        assert chat.direct("ada") == chat.direct("ada")
        assert [method for method, _ in slack.calls] == ["users.lookupByEmail", "conversations.open"]

    def test_somebody_without_slack_is_nobody(self, slack: FakeSlack, chat: SlackChat) -> None:
        assert chat.direct("grace") is None

    def test_somebody_without_slack_is_asked_for_again_after_a_while(
        self, slack: FakeSlack, chat: SlackChat, clock: Clock, caplog: pytest.LogCaptureFixture
    ) -> None:
        for _ in range(3):
            assert chat.direct("grace") is None
        assert [method for method, _ in slack.calls] == ["users.lookupByEmail"]
        assert caplog.text.count("nobody on Slack") == 1
        slack.add_user("grace@example.org")
        clock.now_s += STRANGER_FOR_S
        assert chat.direct("grace") is not None

    def test_an_id_that_slack_does_not_know_is_nobody(
        self, slack: FakeSlack, clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "users.yaml").write_text("ada: U0NOBODYHERE\n")
        chat = make_chat(slack, clock, people=People(tmp_path / "users.yaml", None))
        assert chat.direct("ada") is None
        assert "nobody on Slack is U0NOBODYHERE, who is ada here" in caplog.text

    def test_slack_client_looks_nobody_up_without_a_rule(self, slack: FakeSlack, clock: Clock) -> None:
        assert make_chat(slack, clock, people=People(None, None)).direct("ada") is None
        assert slack.calls == []


class TestPace:
    def test_messages_into_a_channel_are_a_second_apart(self, chat: SlackChat, clock: Clock) -> None:
        parent = chat.post(CHANNEL, HELLO)
        chat.post(CHANNEL, HELLO, thread=parent)
        chat.update(parent, HELLO)
        assert clock.waits == [1.0, 1.0]

    def test_a_name_and_an_id_are_the_same_channel(self, slack: FakeSlack, chat: SlackChat, clock: Clock) -> None:
        chat.post(CHANNEL, HELLO)
        chat.post(slack.channels[CHANNEL], HELLO)
        assert clock.waits == [1.0]

    def test_other_channels_do_not_wait(self, slack: FakeSlack, chat: SlackChat, clock: Clock) -> None:
        slack.add_channel("#other")
        chat.post(CHANNEL, HELLO)
        chat.post("#other", HELLO)
        assert clock.waits == []

    def test_a_queue_that_is_too_long_is_sent_away_and_told_for_how_long(self, slack: FakeSlack, clock: Clock) -> None:
        standing = SlackChat(
            slack.token, api_url=slack.api_url, people=People(None, None), monotonic_s=clock.monotonic_s,
            wait=clock.waits.append,
        )  # fmt: skip
        for _ in range(3):
            standing.post(CHANNEL, HELLO)
        with pytest.raises(RetryLaterError, match="one message a second") as raised:
            standing.post(CHANNEL, HELLO)
        assert raised.value.after_s == 3.0
        assert len(slack.messages) == 3


class TestToken:
    SECRET = "xoxb-12345-secret"

    @pytest.mark.parametrize("token", ["", "xoxb-1 2", "xoxb-1\n2", "xoxb-\N{BULLET}", "xoxb\r\nX-Evil: 1"])
    def test_slack_client_refuses_an_invalid_token_without_quoting_it(
        self, slack: FakeSlack, clock: Clock, token: str
    ) -> None:
        with pytest.raises(ValueError, match="Slack token") as raised:
            SlackChat(token, api_url=slack.api_url, people=People(None, None))
        assert "xoxb" not in str(raised.value)

    @pytest.mark.parametrize(
        "arrange",
        [
            lambda slack: slack.fail("chat.postMessage", "invalid_auth"),
            lambda slack: slack.fail("chat.postMessage", "internal_error"),
            lambda slack: slack.limit("chat.postMessage", 5),
            lambda slack: slack.fault("chat.postMessage", Fault(hangs=True)),
            lambda slack: slack.fault("chat.postMessage", Fault(200, "[1]")),
            lambda slack: slack.fault("chat.postMessage", Fault(500, "x")),
        ],
    )
    def test_slack_client_keeps_the_token_out_of_errors_and_logs(
        self, slack: FakeSlack, clock: Clock, caplog: pytest.LogCaptureFixture, arrange: Callable[[FakeSlack], None]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        slack.token = self.SECRET
        chat = make_chat(slack, clock, timeout_s=0.05)
        arrange(slack)
        with pytest.raises((RetryLaterError, RefusedError)) as raised:
            chat.post(CHANNEL, HELLO)
        assert self.SECRET not in "".join(traceback.format_exception(raised.value))
        assert self.SECRET not in caplog.text
        assert self.SECRET not in repr(chat)
        assert raised.value.__cause__ is None
        assert raised.value.__context__ is None, "an error of slack_sdk carries the request with its headers"

    def test_slack_client_follows_no_redirect_to_another_host(self, clock: Clock) -> None:
        with FakeSlack() as slack, FakeSlack() as elsewhere:
            slack.fault("chat.postMessage", Fault(307, "", {"Location": f"{elsewhere.api_url}chat.postMessage"}))
            with pytest.raises(RetryLaterError):
                make_chat(slack, clock).post(CHANNEL, HELLO)
            assert elsewhere.calls == []


class TestProxies:
    def test_slack_client_bypasses_the_proxy_for_this_host(
        self, slack: FakeSlack, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.delenv("no_proxy", raising=False)
        chat = make_chat(slack, clock)
        parent = chat.post(CHANNEL, HELLO)
        chat.upload(PNG, title="t", alt_text="a", thread=parent)
        assert len(slack.messages) == 2

    def test_slack_itself_is_asked_by_way_of_the_proxy(
        self, slack: FakeSlack, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", slack.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        chat = SlackChat(slack.token, api_url="http://slack.invalid/api/", people=People(None, None), wait=clock.wait)
        chat.post(CHANNEL, HELLO)
        assert [message.text for message in slack.messages] == ["hello"]


def test_an_address_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="slack_api_url"):
        SlackChat("xoxb-1", api_url="slack.com/api", people=People(None, None))


def test_an_upload_address_that_is_no_web_address_is_not_opened(
    slack: FakeSlack, chat: SlackChat, tmp_path: Path
) -> None:
    parent = chat.post(CHANNEL, HELLO)
    answer: dict[str, Any] = {"ok": True, "file_id": "F1", "upload_url": (tmp_path / "x").as_uri()}
    slack.fault("files.getUploadURLExternal", Fault(200, answer))
    with pytest.raises(RetryLaterError):
        chat.upload(PNG, title="t", alt_text="a", thread=parent)


def test_connections_are_given_back(chat: SlackChat, recwarn: pytest.WarningsRecorder) -> None:
    gc.collect()  # what tests before have left open is not this one's
    recwarn.clear()
    chat.post(CHANNEL, HELLO)
    gc.collect()
    assert [warning for warning in recwarn if issubclass(warning.category, ResourceWarning)] == []
