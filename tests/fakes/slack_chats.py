"""A ``SlackChat`` that talks to the fake Slack, on a clock of the test's own."""

from __future__ import annotations

from fakes.fake_slack import FakeSlack
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack.client import SlackChat
from tidegauge_exporter.slack.people import People

CHANNEL = "#gpu-memory"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))
HELLO = Message("hello", ({"type": "section", "text": {"type": "plain_text", "text": "hello", "emoji": False}},))


class Clock:
    """Time that passes only when somebody waits."""

    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.waits: list[float] = []

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now_s += seconds


def make_chat(
    slack: FakeSlack, clock: Clock, *, people: People | None = None, timeout_s: float = 10.0, token: str | None = None
) -> SlackChat:
    return SlackChat(
        slack.token if token is None else token,
        api_url=slack.api_url,
        people=people or People(None, "example.org"),
        timeout_s=timeout_s,
        monotonic_s=clock.monotonic_s,
        wait=clock.wait,
    )
