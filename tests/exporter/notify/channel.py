"""The channel of those who run the cluster, with its notebook: restarted and crashed as a test likes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exporter.notify.telling import CHANNEL, LINKS, Clock, FakeChat, PlainLook, draw
from tidegauge_exporter.notify.notebook import Notebook
from tidegauge_exporter.notify.slack_sink import SlackSink
from tidegauge_exporter.notify.values import Story


class Channel:
    def __init__(self, path: Path) -> None:
        self.clock, self.chat = Clock(), FakeChat()
        self.path = path
        self.notebook = Notebook(self.path, wall_s=self.clock)
        self.sink = self.open()

    def open(self, **changes: Any) -> SlackSink:
        whole = {
            "channel": CHANNEL, "cluster": "rose", "links": LINKS, "wait_for_release": False,
            "look": PlainLook(), "draw": draw, "wall_s": self.clock,
        }  # fmt: skip
        self.sink = SlackSink(self.chat, self.notebook, **{**whole, **changes})
        return self.sink

    def restart(self) -> None:
        self.notebook.close()
        self.notebook = Notebook(self.path, wall_s=self.clock)
        self.open()

    def take(self, *stories: Story, after_s: float = 2.0) -> None:
        self.clock.now_s += after_s
        self.sink.take(stories)
