"""Messages to the owner of a job: when the policy says so, and about actions on the job afterwards.

The ways to owners (``slack.owner_channel``, ``mail.owner_channel``) are behind a port.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

from tidegauge.core.incidents import Closure
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, Outcome
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.ports import Posted, RefusedError, RetryLaterError
from tidegauge_exporter.notify.replicas import affected, told_as_one
from tidegauge_exporter.notify.retries import Attempts
from tidegauge_exporter.notify.story_lines import (
    decision_digest,
    digest,
    ended_s,
    has_ended,
    incident_key,
    known,
    people_face,
    rung_digest,
)
from tidegauge_exporter.notify.threads import posted_from

log = logging.getLogger(__name__)

ONE_AT_A_TIME_S = 30.0
LATE_S = 3600.0
"""Age at which a warning is no longer sent."""
UPDATES = "updates"
"""The kind of attempts that edit a message."""
UNTOUCHED = digest()
"""Of a message about an open incident that nobody has acted on."""
MAX_FINDINGS = 3
"""Messages with evidence to the owner about one incident, the warning included."""


class OwnerWay(Protocol):
    """A way to owners. Methods raise ``RetryLaterError`` and ``RefusedError``, and block for seconds at most."""

    @property
    def name(self) -> str:
        """The name in logs, ``tidegauge status`` and the journal; if it changed, every message would be sent again."""

    @property
    def told(self) -> str:
        """The way in words: "email"."""

    @property
    def deliveries(self) -> Deliveries:
        """Counts of what was sent that way."""

    def check(self) -> None:
        """As ``ports.Sink.check``."""

    def reaches(self, user_name: str) -> bool:
        """True if the user of the cluster has an address there."""

    def tell(self, decision: Decision, story: Story, *, before: Posted | None, now_unix_s: float) -> Posted:
        """Send the message; raises ``RefusedError`` for an unknown user. ``before``: the latest one of the
        incident, or of the growth that its error ended."""

    @property
    def revises(self) -> bool:
        """Whether sent messages change after what people do."""

    def revise(self, decision: Decision, story: Story, *, posted: Posted, now_unix_s: float) -> None:
        """Bring the message about ``decision`` up to date."""

    def complete(self, story: Story, posted: Posted, *, now_unix_s: float) -> None:
        """Send the parts of a message that follow it, once it is in the journal. Raises nothing if they fail."""

    def follow(self, record: DecisionRecord, story: Story, *, posted: Posted) -> None:
        """Reply to ``posted`` with the action on the job."""

    def explain(self, story: Story, *, posted: Posted) -> None:
        """Reply to ``posted`` with the evidence about the incident."""

    def count(self, story: Story, *, posted: Posted) -> None:
        """Reply to ``posted`` with how many replicas of the server are affected by now."""


class OwnerNotifier:
    """Notifies owners in one way, each message once. ``tell`` may be called from any thread; ``take`` sends replies."""

    def __init__(self, way: OwnerWay, journal: DeliveryJournal, *, wall_s: Callable[[], float]) -> None:
        self.name = way.name
        self.deliveries = way.deliveries
        self._way = way
        self._journal = journal
        self._wall_s = wall_s
        self._attempts = Attempts()
        self._telling = threading.Lock()
        self._threads: Mapping[int, str] = {}
        """Keys in the journal by number of the incident."""
        self._taken: Sequence[Story] = ()
        """The latest of all incidents, those of a server's replicas each by itself."""
        self._late: set[str] = set()
        """Keys of warnings that are being sent late."""

    def tell(self, decision: Decision, story: Story) -> str:
        """Notify the owner of the incident's job of a decision; returns the way in words.

        The same decision again sends nothing, and returns the same. Raises ``RetryLaterError``, and ``RefusedError``
        for an unknown user.
        """
        if not self._telling.acquire(timeout=ONE_AT_A_TIME_S):
            raise RetryLaterError(f"still notifying another owner ({self._way.told})")
        try:
            return self._tell(decision, story)
        finally:
            self._telling.release()

    def check(self) -> None:
        self._way.check()

    def take(self, stories: Sequence[Story]) -> None:
        """Reply to the messages that the owner got with the actions since."""
        self._taken, stories = stories, told_as_one(stories)
        self._threads = {story.incident.number: incident_key(story.incident) for story in stories}
        with self._attempts.round(self._wall_s()):
            for story in stories:
                what = f"what was done about incident {story.incident.number}"
                self._attempts.make(what, partial(self._follow, story))
            for story in stories:
                if not self._way.revises and story.replicas is None:
                    continue
                what = f"the buttons of incident {story.incident.number}"
                self._attempts.make(what, partial(self._revise, story), kind=UPDATES)

    def _tell(self, decision: Decision, story: Story) -> str:
        key, now_s = _told_key(decision), self._wall_s()
        if self._said(key) is None:
            story = self._joined(story)
            if story.replicas is not None and (before := posted_from(self._said(_rung_key(decision, story)))):
                self._note(key, before, story)
                return self._way.told
            posted = self._way.tell(decision, story, before=self._before(story), now_unix_s=now_s)
            self._note(incident_key(story.incident), posted, story)
            self._note(key, posted, story)
            if story.replicas is not None:
                self._note(_rung_key(decision, story), posted, story)
                self._note_count(story)
                self._note_shown(story)
            if (found := _found_key(story)) is not None:  # it is in the message
                self._note(found, posted, story)
            self._way.complete(story, posted, now_unix_s=now_s)
        return self._way.told

    def _joined(self, story: Story) -> Story:
        """The story with those that are told with it."""
        if story.incident.told_as is None or story.replicas is not None:
            return story
        others = [one for one in self._taken if one.incident.number != story.incident.number]
        return told_as_one([story, *others])[0]

    def _follow(self, story: Story) -> bool:
        said = self._tell_late(story)
        for record in sorted(filter(_was_acted, story.decisions), key=ended_s):
            key, thread = f"done/{decision_digest(record.decision)}", self._thread(story)
            if thread is not None and self._said(key) is None:
                self._way.follow(record, story, posted=thread)
                self._note(key, thread, story)
                said = True
        return any([self._explain(story), self._count(story), said])

    def _count(self, story: Story) -> bool:
        """Tell that twice as many replicas of a server are affected as at the last time."""
        thread, told = self._thread(story), self._said(_count_key(story))
        if thread is None or affected(story) < 2 * max(1, int(told or 1)):
            return False
        self._way.count(story, posted=thread)
        self._note_count(story)
        return True

    def _note_count(self, story: Story) -> None:
        self._journal.say(self.name, _count_key(story), str(affected(story)), over=not story.incident.is_open)

    def _revise(self, story: Story) -> bool:
        """Bring sent messages up to date after what people did, as replicas of a server come and go, and at the end of
        the incident: old buttons go."""
        before, thread = self._said(_shown_key(story)), self._thread(story)
        if thread is None or (before or UNTOUCHED) == _shown(story):
            return False
        told: dict[Posted, Decision] = {}
        for record in filter(_was_told, story.decisions):
            posted = posted_from(self._said(_told_key(record.decision)))
            if posted is not None:
                told.setdefault(posted, record.decision)
        for posted, decision in told.items():
            self._way.revise(decision, story, posted=posted, now_unix_s=self._wall_s())
        self._note_shown(story)
        return bool(told)

    def _note_shown(self, story: Story) -> None:
        self._journal.say(self.name, _shown_key(story), _shown(story), over=not story.incident.is_open)

    def _explain(self, story: Story) -> bool:
        """Send line, holder and cause once they are known, and again when they are better known."""
        key, thread = _found_key(story), self._thread(story)
        if key is None or thread is None or self._said(key) is not None:
            return False
        if len(self._journal.keys(self.name, _found_prefix(story))) >= MAX_FINDINGS:
            return False
        self._way.explain(story, posted=thread)
        self._note(key, thread, story)
        return True

    def _tell_late(self, story: Story) -> bool:
        """Send the latest notification that went out another way alone, because this way or this process was away: also
        after the job has ended, but not once nothing is wrong any more."""
        known = [record for record in story.decisions if _was_told(record) and self._is_missing(record)]
        if not known or story.incident.closure is Closure.RECOVERED:
            return False
        latest, key = known[-1].decision, _told_key(known[-1].decision)
        if self._wall_s() - ended_s(known[-1]) > LATE_S:
            if key in self._late:
                self._late.remove(key)
                self.deliveries.drop()
            return False
        if key not in self._late and not self._way.reaches(story.incident.user_name):
            return False  # they were told where they could be
        self._late.add(key)
        self.tell(latest, story)
        self._late.remove(key)
        thread = self._thread(story)
        for record in known[:-1]:
            if thread is not None:
                self._note(_told_key(record.decision), thread, story)
        return True

    def _is_missing(self, record: DecisionRecord) -> bool:
        return self._said(_told_key(record.decision)) is None

    def _thread(self, story: Story) -> Posted | None:
        """The latest message to the owner about the incident."""
        return posted_from(self._said(incident_key(story.incident)))

    def _before(self, story: Story) -> Posted | None:
        """The message that a new one goes on from: of an error that of the growth before it, as it is one story."""
        growth = self._threads.get(story.incident.grew_in or 0)
        return self._thread(story) or (None if growth is None else posted_from(self._said(growth)))

    def _said(self, key: str) -> str | None:
        return self._journal.said(self.name, key)

    def _note(self, key: str, posted: Posted, story: Story) -> None:
        self._journal.say(self.name, key, json.dumps(posted), over=not story.incident.is_open)


def tell_owner(ways: Sequence[OwnerNotifier], decision: Decision, story: Story) -> str:
    """Notify the owner in all ways; one is enough, and the others are tried again with the stories. Returns the ways in
    words: "Slack DM, email".

    Raises ``RetryLaterError`` if no way works now, and ``RefusedError`` if none ever will as things are.
    """
    results = [_tried(way, decision, story) for way in ways]
    told = [result for result in results if isinstance(result, str)]
    failed = [result for result in results if not isinstance(result, str)]
    problem = "; ".join(map(str, failed))
    if told:
        return ", ".join(told) + (f" (failed: {problem})" if failed else "")
    waits_s = [error.after_s for error in failed if isinstance(error, RetryLaterError)]
    if waits_s:
        raise RetryLaterError(problem, after_s=min(waits_s))
    raise RefusedError(problem or "no way to notify owners is configured")


def _tried(way: OwnerNotifier, decision: Decision, story: Story) -> str | RetryLaterError | RefusedError:
    try:
        return way.tell(decision, story)
    except (RetryLaterError, RefusedError) as error:
        return error


def _told_key(decision: Decision) -> str:
    return f"told/{decision_digest(decision)}"


def _rung_key(decision: Decision, story: Story) -> str:
    """Of what a rung of the policy says of a server: all its replicas are in one message."""
    return f"rung/{incident_key(story.incident)}/{rung_digest(decision)}"


def _shown_key(story: Story) -> str:
    return f"shown/{incident_key(story.incident)}"


def _shown(story: Story) -> str:
    """A digest of what edits a sent message."""
    many = () if story.replicas is None else story.replicas.names
    return digest(*people_face(story), *many, *([] if story.incident.is_open else ["closed"]))


def _count_key(story: Story) -> str:
    return f"replicas/{incident_key(story.incident)}"


def _found_prefix(story: Story) -> str:
    return f"found/{incident_key(story.incident)}/"


def _found_key(story: Story) -> str | None:
    found = known(story.incident)
    return None if found is None else f"{_found_prefix(story)}{found}"


def _was_told(record: DecisionRecord) -> bool:
    return record.decision.action is ActionKind.NOTIFY and record.outcome is Outcome.DONE


def _was_acted(record: DecisionRecord) -> bool:
    return record.decision.action.is_acting and has_ended(record)
