"""The channel of those who run the cluster, with its journal: restarted and crashed as a test likes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exporter.notify.telling import CHANNEL, LINKS, Call, Clock, FakeChat, PlainLook, draw, warning
from sample_views import NOW_S
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.ports import RetryLaterError
from tidegauge_exporter.slack.sink import SlackSink


class Channel:
    def __init__(self, path: Path) -> None:
        self.clock, self.chat = Clock(), FakeChat()
        self.path = path
        self.journal = DeliveryJournal(self.path, wall_s=self.clock)
        self.sink = self.open()

    def open(self, **changes: Any) -> SlackSink:
        whole = {
            "channel": CHANNEL, "cluster": "rose", "links": LINKS, "wait_for_release": False,
            "look": PlainLook(), "draw": draw, "wall_s": self.clock,
        }  # fmt: skip
        self.sink = SlackSink(self.chat, self.journal, **{**whole, **changes})
        return self.sink

    def restart(self) -> None:
        self.journal.close()
        self.journal = DeliveryJournal(self.path, wall_s=self.clock)
        self.open()

    def take(self, *stories: Story, after_s: float = 2.0) -> None:
        self.clock.now_s += after_s
        self.sink.take(stories)

    def take_one_more_each(self, pauses_s: Sequence[float]) -> None:
        """An incident more after each pause; a restart where the chat is away, and at last one turn in which it is
        there."""
        told = []
        for number, pause_s in enumerate(pauses_s, start=1):
            told.append(warning(number, opened_unix_s=NOW_S))
            try:
                self.take(*told, after_s=pause_s)
            except RetryLaterError:
                self.restart()
        self.chat.before = lambda _: None
        self.take(*told)


def away_at(failing: Sequence[bool]) -> Callable[[Call], None]:
    """The chat is away at those of its calls."""
    faults = iter(failing)

    def before(call: Call) -> None:
        if next(faults, False):
            raise RetryLaterError("not now")

    return before
