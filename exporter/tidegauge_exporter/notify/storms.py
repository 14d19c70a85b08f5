"""Storms: when many incidents begin at once, the further ones share one thread."""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.ports import Chat, MessageFormat, Posted
from tidegauge_exporter.notify.retries import Attempts, is_due
from tidegauge_exporter.notify.story_lines import digest, face
from tidegauge_exporter.notify.threads import SLACK, Storm, from_text, to_text

MAX_THREADS = 5
"""Threads before a storm begins, and tenants whose first incident gets a thread despite a storm."""
WITHIN_S = 600.0
"""Seconds within which more than ``MAX_THREADS`` threads begin a storm."""
QUIET_S = 1800.0
"""Seconds without a new incident that end a storm."""
SHOW_EVERY_S = 30.0
"""Shortest time between two updates of the head of a storm's thread."""
MAX_INCIDENTS_PER_STORM = 200
MAX_STORM_S = 6 * 3600.0
"""Bounds of a storm in incidents and time, after which the next one begins: on a busy cluster a storm is never quiet,
and its head and its entry in the journal grow with its incidents."""
FORGET_S = 7 * 86400.0
"""Seconds after which a storm is over if the coordinator has forgotten some of its incidents."""
OPENINGS = "begun"
UPDATES = "updates"
"""The kind of attempts that rewrite a message."""


class _Known(NamedTuple):
    """An incident in a storm, as far as the storm's head needs it."""

    story: Story
    """The parts of the story that the head shows."""
    mark: str
    """A digest of these parts."""

    @classmethod
    def of(cls, story: Story) -> _Known:
        incident = story.incident
        if not incident.is_open:
            incident = replace(incident, findings=(), explanation=None, snapshots=(), reports=(), evidence=())
        return cls(Story(incident, replicas=story.replicas), _mark(story))


class Storms:
    """Storms of one thread. The journal has the recent beginnings of threads, and the incidents of each storm."""

    def __init__(
        self, chat: Chat, journal: DeliveryJournal, *, channel: str, cluster: str, links: Links, look: MessageFormat
    ) -> None:
        self._chat = chat
        self._journal = journal
        self._channel = channel
        self._cluster = cluster
        self._links = links
        self._look = look
        self._known: dict[int, _Known] = {}
        """The latest of each incident in a storm: the coordinator forgets closed ones sooner than a storm ends."""

    def divide(self, wanted: Sequence[Story], now_s: float) -> tuple[list[Story], list[Story]]:
        """Stories that get threads of their own, the worst first, and stories that go into a storm."""
        worst_first = sorted(wanted, key=lambda story: (-story.incident.severity.level, story.incident.number))
        placed = self._placed()
        gathered = [story for story in worst_first if story.incident.number in placed]
        fresh = [story for story in worst_first if story.incident.number not in placed]
        openings, gathering = self._openings(now_s), self._gathering(now_s)
        heard_of = {whose for _, whose in openings}
        firsts = _first_of_each_tenant(fresh, heard_of | set(() if gathering is None else gathering[1].tenants))
        # What one user floods the channel with must not drown what happens to everybody else.
        alone = firsts[: max(0, MAX_THREADS - len(heard_of))]
        rest = [story for story in fresh if story not in alone]
        room = 0 if gathering is None else _room(gathering[1])
        # Where the storm has not room for all, it is the worst that get threads of their own.
        alone += rest[: max(0, min(len(rest) - room, MAX_THREADS - len(openings) - len(alone)))]
        return alone, gathered + [story for story in fresh if story not in alone]

    def gather(self, stories: Sequence[Story], now_s: float) -> bool:
        """Add stories to the present storm, and to further ones if they are too many. True if a storm was posted.

        Raises ``RetryLaterError`` and ``RefusedError``.
        """
        placed = self._placed()
        fresh = [story for story in stories if story.incident.number not in placed]
        begins = False
        while fresh:
            found = self._gathering(now_s)
            if found is None:
                found, begins = self._begun(fresh[:MAX_INCIDENTS_PER_STORM], now_s), True
            key, storm = found
            joining, fresh = fresh[: _room(storm)], fresh[_room(storm) :]
            # Before each gets its reply: whatever happens in between, its place is here.
            numbers = (*storm.numbers, *(story.incident.number for story in joining))
            tenants = tuple(sorted({*storm.tenants, *map(_tenant, joining)}))
            began_s = _began_s(storm)
            self._say(key, replace(storm, numbers=numbers, tenants=tenants, joined_unix_s=now_s, began_unix_s=began_s))
        return begins

    def _begun(self, stories: Sequence[Story], now_s: float) -> tuple[str, Storm]:
        """Post the head of a new storm about these stories, which have not joined it yet."""
        posted = self._chat.post(self._channel, self._look.storm_message(
            stories, cluster=self._cluster, links=self._links, now_unix_s=now_s
        ))  # fmt: skip
        now_face = digest(*map(_mark, stories))
        return f"storm/{posted.ts}", Storm(*posted, now_s, began_unix_s=now_s, face=now_face, shown_unix_s=now_s)

    def of(self, story: Story) -> Posted | None:
        """The head of the incident's storm, if it is in one."""
        for _, storm in self._going_on():
            if story.incident.number in storm.numbers:
                return storm.posted
        return None

    def note_thread(self, story: Story, now_s: float) -> None:
        """Remember that an incident got a thread of its own."""
        self._journal.say(SLACK, OPENINGS, json.dumps([*self._openings(now_s), (now_s, _tenant(story))]))

    def update(self, stories: Sequence[Story], now_s: float, attempts: Attempts) -> None:
        """Update the heads of storms, each at most every 30 s."""
        placed = self._placed()
        known = {number: known for number, known in self._known.items() if number in placed}
        news = {story.incident.number: _Known.of(story) for story in stories if story.incident.number in placed}
        self._known = {**known, **news}
        for key, storm in self._going_on():
            attempts.make("the head of a storm", partial(self._update, key, storm, now_s), kind=UPDATES)

    def _update(self, key: str, storm: Storm, now_s: float) -> bool:
        known = [self._known[number] for number in storm.numbers if number in self._known]
        ended = not any(one.story.incident.is_open for one in known)
        now_face = digest(*(one.mark for one in known))
        # With some of them unknown (a restart after a long time) the head would shrink: better as it was.
        is_whole = len(known) == len(storm.numbers)
        due = ended or is_due(storm.shown_unix_s, SHOW_EVERY_S, now_unix_s=now_s)
        outdated = is_whole and due and now_face != storm.face
        if outdated:
            self._chat.update(storm.posted, self._look.storm_message(
                [one.story for one in known], cluster=self._cluster, links=self._links, now_unix_s=now_s
            ))  # fmt: skip
            storm = replace(storm, face=now_face, shown_unix_s=now_s)
        over = ended and is_due(storm.joined_unix_s, QUIET_S if is_whole else FORGET_S, now_unix_s=now_s)
        self._say(key, replace(storm, over=over))
        return outdated

    def _gathering(self, now_s: float) -> tuple[str, Storm] | None:
        """The storm that takes new incidents, if there is one."""
        for key, storm in self._going_on():
            is_quiet = is_due(storm.joined_unix_s, QUIET_S, now_unix_s=now_s)
            is_long = is_due(_began_s(storm), MAX_STORM_S, now_unix_s=now_s)
            if _room(storm) and not is_quiet and not is_long:
                return key, storm
        return None

    def _going_on(self) -> list[tuple[str, Storm]]:
        found = [(key, from_text(Storm, self._journal.said(SLACK, key))) for key in self._journal.keys(SLACK, "storm/")]
        return [(key, storm) for key, storm in found if storm is not None and not storm.over]

    def _placed(self) -> set[int]:
        return {number for _, storm in self._going_on() for number in storm.numbers}

    def _openings(self, now_s: float) -> list[tuple[float, str]]:
        """Times and tenants of threads that began recently."""
        openings = json.loads(self._journal.said(SLACK, OPENINGS) or "[]")
        recent = [(at_s, whose) for at_s, whose in openings if not is_due(at_s, WITHIN_S, now_unix_s=now_s)]
        # Earlier versions wrote a uid.
        return [(at_s, str(Tenant(whose)) if isinstance(whose, int) else whose) for at_s, whose in recent]

    def _say(self, key: str, storm: Storm) -> None:
        self._journal.say(SLACK, key, to_text(storm), over=storm.over)


def _first_of_each_tenant(stories: Sequence[Story], heard_of: Container[str]) -> list[Story]:
    """The first story of each tenant who is not in ``heard_of``."""
    firsts: dict[str, Story] = {}
    for story in stories:
        if _tenant(story) not in heard_of:
            firsts.setdefault(_tenant(story), story)
    return list(firsts.values())


def _tenant(story: Story) -> str:
    return str(tenant_of(story.incident.key.job))


def _room(storm: Storm) -> int:
    """Number of incidents that the storm can still take."""
    return max(0, MAX_INCIDENTS_PER_STORM - len(storm.numbers))


def _began_s(storm: Storm) -> float:
    """The beginning of the storm, or of its latest known change."""
    return storm.began_unix_s or storm.joined_unix_s


def _mark(story: Story) -> str:
    return f"{story.incident.number} {face(story)}"
