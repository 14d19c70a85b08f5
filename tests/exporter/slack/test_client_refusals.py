"""What every kind of refusal of Slack's becomes."""

from __future__ import annotations

import json
import socket

import pytest

from fakes.fake_slack import FakeSlack, Fault
from fakes.slack_chats import CHANNEL, HELLO, PNG, Clock, make_chat
from tidegauge_exporter.notify.ports import Message, RefusedError, RetryLaterError, retry_after_s
from tidegauge_exporter.slack.client import SlackChat, refusal
from tidegauge_exporter.slack.people import People
from waiting import PATIENCE_S, eventually


class TestRefusals:
    @pytest.mark.parametrize(("retry_after", "seconds"), [(30, 30.0), (0, 1.0), ("soon", 30.0), (10**9, 3_600.0)])
    def test_slack_is_left_alone_for_as_long_as_it_asks(
        self, slack: FakeSlack, chat: SlackChat, clock: Clock, retry_after: int | str, seconds: float
    ) -> None:
        slack.limit("chat.postMessage", retry_after)
        for _ in range(2):
            with pytest.raises(RetryLaterError) as raised:
                chat.post(CHANNEL, HELLO)
            assert raised.value.after_s == pytest.approx(seconds, abs=2.0)
        assert slack.calls == []
        clock.now_s += seconds
        assert chat.post(CHANNEL, HELLO)

    def test_a_limit_that_a_gateway_sets_counts_too(self, slack: FakeSlack, chat: SlackChat) -> None:
        slack.fault("chat.postMessage", Fault(429, "<html>slow down</html>", {"Retry-After": "70"}))
        with pytest.raises(RetryLaterError) as raised:
            chat.post(CHANNEL, HELLO)
        assert raised.value.after_s == 70.0

    def test_a_limit_of_one_method_is_none_of_another(self, slack: FakeSlack, chat: SlackChat) -> None:
        posted = chat.post(CHANNEL, HELLO)
        slack.limit("chat.postMessage", 60)
        with pytest.raises(RetryLaterError):
            chat.post(CHANNEL, HELLO)
        chat.update(posted, Message("over"))
        assert slack.messages[0].text == "over"

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(500, "<html>"),
            Fault(503, {"ok": False, "error": "service_unavailable"}),
            Fault(200, {"ok": False, "error": "internal_error"}),
            Fault(200, {"ok": False, "error": "something_new"}),
            Fault(200, {"ok": False, "error": {"odd": 1}}),
            Fault(200, {"ok": False}),
            Fault(200, {"ok": True}),
            Fault(200, "<html>log in to the network</html>"),
            Fault(200, "[1, 2]"),
            Fault(200, '"text"'),
            Fault(200, ""),
            Fault(204, ""),
            Fault(302, "", {"Location": "http://127.0.0.1:9/api/"}),
            Fault(404, "no such page"),
        ],
        ids=lambda fault: f"{fault.status}-{json.dumps(fault.body)[:30]}",
    )
    def test_whatever_else_comes_back_is_tried_again_later(
        self, slack: FakeSlack, chat: SlackChat, clock: Clock, fault: Fault
    ) -> None:
        slack.fault("chat.postMessage", fault)
        with pytest.raises(RetryLaterError) as raised:
            chat.post(CHANNEL, HELLO)
        assert 1.0 <= raised.value.after_s <= 3_600.0
        clock.now_s += 1.0
        assert chat.post(CHANNEL, HELLO), "one odd answer holds up no other message"

    def test_silence_ends_in_time_and_slack_is_spared_for_a_moment(self, slack: FakeSlack, clock: Clock) -> None:
        chat = make_chat(slack, clock, timeout_s=0.05)
        slack.fault("chat.postMessage", Fault(hangs=True))
        with pytest.raises(RetryLaterError, match="no answer in time"):
            chat.post(CHANNEL, HELLO)
        with pytest.raises(RetryLaterError, match="no answer in time"):
            chat.post(CHANNEL, HELLO)
        assert slack.calls == []
        clock.now_s += 60.0
        # The server may have come to it later than the client gave it up.
        eventually(lambda: not slack._faults["chat.postMessage"])
        chat._client._timeout_s = PATIENCE_S
        assert chat.post(CHANNEL, HELLO)

    def test_a_slack_that_is_away_is_tried_again_later(self, clock: Clock) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            away = f"http://127.0.0.1:{unused.getsockname()[1]}/api/"
            chat = SlackChat("xoxb-1", api_url=away, people=People(None, None), monotonic_s=clock.monotonic_s)
            with pytest.raises(RetryLaterError, match="Connection refused"):
                chat.post(CHANNEL, HELLO)

    @pytest.mark.parametrize(
        ("error", "advice"),
        [
            ("invalid_auth", "token"),
            ("token_revoked", "token"),
            ("account_inactive", "token"),
            ("channel_not_found", "slack_channel"),
            ("not_in_channel", "/invite"),
            ("is_archived", "archived"),
            ("restricted_action", "administrators"),
            ("invalid_blocks", "report it"),
            ("restricted_action_thread_locked", "locked"),
            ("messages_tab_disabled", "App Home"),
        ],
    )
    def test_slack_refusal_says_what_to_correct(
        self, slack: FakeSlack, chat: SlackChat, error: str, advice: str
    ) -> None:
        slack.fail("chat.postMessage", error)
        with pytest.raises(RefusedError, match=advice) as raised:
            chat.post(CHANNEL, HELLO)
        assert error in str(raised.value)

    def test_a_scope_that_is_missing_is_named(self, slack: FakeSlack, chat: SlackChat) -> None:
        parent = chat.post(CHANNEL, HELLO)
        slack.scopes.discard("files:write")
        with pytest.raises(RefusedError, match="lacks files:write"):
            chat.upload(PNG, title="t", alt_text="a", thread=parent)

    def test_a_channel_that_the_app_is_not_in_is_a_persons_business(self, slack: FakeSlack, chat: SlackChat) -> None:
        slack.not_joined.add(slack.channels[CHANNEL])
        with pytest.raises(RefusedError, match="invite"):
            chat.post(CHANNEL, HELLO)

    def test_words_of_slack_that_are_no_names_are_not_repeated(self) -> None:
        assert "evil" not in str(refusal("chat.update", "evil\nline <b>"))
        assert "evil" not in str(refusal("chat.update", "missing_scope", needed="EVIL\n"))

    @pytest.mark.parametrize("retry_after", [None, "", "nan", "-5", "inf"])
    def test_any_retry_after_is_a_time_to_wait(self, retry_after: str | None) -> None:
        assert 1.0 <= retry_after_s(retry_after) <= 3_600.0
