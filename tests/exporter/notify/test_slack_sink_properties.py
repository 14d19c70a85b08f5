"""For any history, failures and crashes: every line of every incident is told, in order, and as good as once."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from exporter.notify.channel import Channel
from exporter.notify.telling import (
    Call,
    Crash,
    PlainLook,
    closed,
    decided,
    done,
    escalated,
    happened,
    is_about,
    warning,
)
from tidegauge.core.incidents import ChangeKind, IncidentChange, IncidentState
from tidegauge.core.incidents.acts import PersonAct
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.story_lines import MAX_LINES_AT_ONCE, StoryLine, lines_of

FAULTS = ("ok", "ok", "ok", "ok", "later", "refused", "crash before", "crash after")
EVENTS = ("open", "escalate", "spread", "figures", "recover", "decide", "close", "nothing", "restart", "forgetful")


@dataclass
class World:
    """Up to four incidents and a chat with faults."""

    channel: Channel
    faults: list[str]
    stories: dict[int, Story] = field(default_factory=dict)
    repeats: int = 0
    """Messages that were said, but whose being said is not written down: each may be said once more."""
    at_s: float = 0.0

    def __post_init__(self) -> None:
        self.channel.chat.before, self.channel.chat.after = self._before, self._after
        self._fault = "ok"

    def _before(self, call: Call) -> None:
        self._fault = self.faults.pop() if self.faults else "ok"
        if self._fault == "later":
            raise RetryLaterError("away")
        if self._fault == "refused":
            raise RefusedError("not this")
        if self._fault == "crash before":
            raise Crash

    def _after(self, call: Call) -> None:
        if self._fault == "crash after":
            self.repeats += 1
            raise Crash

    def happen(self, event: str, number: int) -> None:
        self.at_s += 1.0
        told = self.stories.get(number)
        if told is None:
            if event == "open":
                self.stories[number] = warning(number)
        elif told.incident.is_open:
            self.stories[number] = self._next(event, told)
        elif event == "decide":
            self.stories[number] = decided(told, done(at_s=self.at_s))

    def _next(self, event: str, told: Story) -> Story:
        if event == "escalate":
            return escalated(told, self.at_s)
        if event == "spread":
            return happened(told, ChangeKind.SPREAD, self.at_s)
        if event == "figures":
            return happened(told, ChangeKind.UPDATED, self.at_s, grown_bytes=int(self.at_s))
        if event == "recover":
            return happened(told, ChangeKind.RECOVERING, self.at_s, state=IncidentState.RECOVERING)
        if event == "decide":
            return decided(told, done(at_s=self.at_s))
        return closed(told, self.at_s) if event == "close" else told

    def round(self, *, restart: bool = False, forgetful: bool = False) -> None:
        """One handing-over. ``forgetful``: the service was restarted, and tells of incidents without their history."""
        if restart:
            self.channel.restart()
        told = self.stories.values()
        try:
            self.channel.take(*(Story(one.incident) if forgetful else one for one in told))
        except (RetryLaterError, RefusedError):
            pass
        except Crash:
            self.channel.restart()


@given(
    # No more than are told at once after a long absence.
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(1, 3)), min_size=1, max_size=MAX_LINES_AT_ONCE),
    faults=st.lists(st.sampled_from(FAULTS), max_size=60),
)
def test_whatever_happens_each_incident_has_one_thread_with_each_line_once(
    events: list[tuple[str, int]], faults: list[str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Channel(Path(folder) / "notified.jsonl"), list(faults))
        for event, number in events:
            world.happen(event, number)
            world.round(restart=event == "restart", forgetful=event == "forgetful")
        world.faults = []
        for _ in range(3):
            world.channel.clock.now_s += 400.0  # what was refused is tried again
            world.round()
        world.channel.journal.close()
        surplus = sum(check(world, story) for story in world.stories.values())
    assert surplus <= world.repeats


def check(world: World, story: Story) -> int:
    """The thread of an incident is complete and in order; returns how many messages are there more than once."""
    chat = world.channel.chat
    heads = [ts for ts, said in chat.said.items() if said.thread is None and is_about(story.incident, said.text)]
    incident = story.incident
    shown = f"incident {incident.number} {incident.state.value} {incident.severity.value} "
    assert chat.said[heads[-1]].text.startswith(shown)
    replies = [said.text for said in chat.said.values() if said.thread in heads]
    # The end is known from the incident alone, and so may be told before what a forgetful service has forgotten.
    ends = {text(line) for line in lines_of(story) if text(line).startswith("closed")}
    wanted = [text(line) for line in lines_of(story)]
    assert set(replies) == set(wanted)
    assert [reply for reply in dict.fromkeys(replies) if reply not in ends] == [
        one for one in wanted if one not in ends
    ]
    return len(heads) - 1 + len(replies) - len(set(replies))


def text(line: StoryLine) -> str:
    look = PlainLook()
    what = line.what
    if isinstance(what, PersonAct):
        return look.act_reply(what).text
    return (look.change_reply(what) if isinstance(what, IncidentChange) else look.action_reply(what)).text
