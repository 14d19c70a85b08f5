"""A fake Slack, and the client on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fakes.fake_slack import FakeSlack
from fakes.slack_chats import Clock, make_chat
from tidegauge_exporter.slack.client import SlackChat


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack() as running:
        yield running


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def chat(slack: FakeSlack, clock: Clock) -> SlackChat:
    return make_chat(slack, clock)
