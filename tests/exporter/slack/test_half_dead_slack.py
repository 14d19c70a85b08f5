"""A Slack with one dead method: all else goes on, and what waited is told in order when the method is back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.notify.telling import LINKS, MEMORY, PlainLook, closed, decided, done, draw, escalated, happened, warning
from fakes.fake_slack import FakeSlack, Fault, Thread
from fakes.slack_chats import CHANNEL, Clock, make_chat
from sample_views import NOW_S
from tidegauge.core.incidents import ChangeKind
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.notifier import FETCH_EVERY_S, SinkWorker
from tidegauge_exporter.slack.sink import SlackSink

BROKEN = Fault(500, "<html>")
LIMITED = Fault(429, {"ok": False, "error": "ratelimited"}, {"Retry-After": "120"})
BACK_AT_S = 240.0
SOON_S = 20.0
"""Within which everything is told that does not need the dead method."""
UPLOADS = ("files.getUploadURLExternal", "upload", "files.completeUploadExternal")
FIRST = replace(warning(1), memory=MEMORY)
SECOND = replace(warning(2, opened_unix_s=NOW_S + 60), memory=MEMORY)
WORSE = escalated(FIRST, 30.0)
WIDER = happened(WORSE, ChangeKind.SPREAD, 100.0)
ACTED = decided(WIDER, done(at_s=140.0, name="capped"))
OVER = closed(ACTED, 180.0)
HAPPENS: Mapping[float, Story] = {0.0: FIRST, 30.0: WORSE, 60.0: SECOND, 100.0: WIDER, 140.0: ACTED, 180.0: OVER}
LINES = ["opened at 0", "escalated at 30", "spread at 100", "cap done capped", "closed at 180"]
LAST_HEAD = "incident 1 closed critical"


class Newsroom:
    """The worker of the channel on a clock that the test moves."""

    def __init__(self, slack: FakeSlack, journal: Path) -> None:
        self.slack, self.clock = slack, Clock()
        self.clock.now_s = NOW_S
        now_s = self.clock.monotonic_s
        sink = SlackSink(
            make_chat(slack, self.clock), DeliveryJournal(journal, wall_s=now_s),
            channel=CHANNEL, cluster="rose", links=LINKS, wait_for_release=False, look=PlainLook(), draw=draw,
            wall_s=now_s,
        )  # fmt: skip
        self.worker = SinkWorker(sink, wall_s=now_s, monotonic_s=now_s)
        self.was_without_files = False
        self._told: dict[int, Story] = {}

    def break_down(self, method: str, fault: Fault) -> None:
        self.slack.down[method] = fault
        self.was_without_files = method in UPLOADS

    def until(self, at_s: float) -> None:
        """Fetch and hand over every two seconds until then."""
        while self.clock.now_s < NOW_S + at_s:
            for happens_s, story in HAPPENS.items():
                if happens_s <= self.clock.now_s - NOW_S:
                    self._told[story.incident.number] = story
            self.worker.deliver(list(self._told.values()))
            if self.worker.wait_s() == 0.0:
                self.worker.hand_over()
            self.clock.now_s += FETCH_EVERY_S

    def thread(self, number: int) -> Thread:
        (found,) = [one for one in self.slack.threads(CHANNEL) if one.parent.text.startswith(f"incident {number} ")]
        return found

    def lines(self, number: int) -> list[str]:
        return [reply.text for reply in self.thread(number).replies if reply.file is None]

    def plots(self, number: int) -> int:
        return sum(reply.file is not None for reply in self.thread(number).replies)


@pytest.fixture
def room(slack: FakeSlack, tmp_path: Path) -> Iterator[Newsroom]:
    room = Newsroom(slack, tmp_path / "notified.jsonl")
    room.until(10.0)  # the first thread is there
    yield room
    slack.down.clear()
    room.until(BACK_AT_S + 180.0)
    assert room.lines(1) == LINES
    assert room.lines(2) == ["opened at 60"]
    assert room.thread(1).parent.text.startswith(LAST_HEAD)
    # A plot of how an incident got worse is of no use once it is closed.
    assert (room.plots(1), room.plots(2)) == (1 if room.was_without_files else 2, 1)
    assert room.worker.status().problem is None


@pytest.mark.parametrize("fault", [BROKEN, LIMITED], ids=["500", "429"])
def test_updates_that_fail_hold_up_no_thread_no_line_and_no_plot(room: Newsroom, fault: Fault) -> None:
    room.break_down("chat.update", fault)
    for happens_s, lines in ((30.0, 2), (100.0, 3), (140.0, 4), (180.0, 5)):
        room.until(happens_s + SOON_S)
        assert room.lines(1) == LINES[:lines]
        assert room.plots(1) == 2
    assert (room.lines(2), room.plots(2)) == (["opened at 60"], 1)
    assert room.thread(1).parent.edits == 0
    assert "chat.update" in (room.worker.status().problem or "")
    room.until(BACK_AT_S)


@pytest.mark.parametrize("fault", [BROKEN, LIMITED], ids=["500", "429"])
@pytest.mark.parametrize("method", UPLOADS)
def test_files_that_fail_hold_up_no_thread_no_line_and_no_update(room: Newsroom, method: str, fault: Fault) -> None:
    room.break_down(method, fault)
    for happens_s, lines in ((30.0, 2), (100.0, 3), (140.0, 4), (180.0, 5)):
        room.until(happens_s + SOON_S)
        assert room.lines(1) == LINES[:lines]
    assert (room.lines(2), room.plots(2)) == (["opened at 60"], 0)
    assert room.thread(1).parent.text.startswith(LAST_HEAD)
    room.until(BACK_AT_S)
    assert room.worker.status().problem is not None


@pytest.mark.parametrize("fault", [BROKEN, LIMITED], ids=["500", "429"])
def test_messages_that_fail_hold_up_no_update_and_no_plot(room: Newsroom, fault: Fault) -> None:
    room.break_down("chat.postMessage", fault)
    room.until(30.0 + SOON_S)
    assert room.thread(1).parent.text.startswith("incident 1 open critical")
    assert room.plots(1) == 2
    room.until(180.0 + SOON_S)
    assert room.thread(1).parent.text.startswith(LAST_HEAD)
    assert len(room.slack.threads(CHANNEL)) == 1
    room.until(BACK_AT_S)


@pytest.mark.parametrize("method", ["chat.update", "chat.postMessage", *UPLOADS])
def test_a_dead_method_is_tried_every_quarter_of_a_minute(room: Newsroom, method: str) -> None:
    room.break_down(method, BROKEN)
    room.until(BACK_AT_S)
    assert 5 <= room.slack.failed[method] <= BACK_AT_S / 15.0
