"""The owner of a job: a direct message when the policy says so, and as replies what was done to the job afterwards."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from tidegauge.core.actions import ActionKind, Decision, DecisionRecord, Outcome
from tidegauge_exporter.links import Links
from tidegauge_exporter.notify.attempts import Attempts
from tidegauge_exporter.notify.look import Look, Plot
from tidegauge_exporter.notify.notebook import Notebook
from tidegauge_exporter.notify.plots import upload_plot
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError
from tidegauge_exporter.notify.story_lines import decision_digest, ended_s, has_ended, incident_key
from tidegauge_exporter.notify.threads import posted_from
from tidegauge_exporter.notify.values import Story
from tidegauge_exporter.slack.chat import Chat, Posted

log = logging.getLogger(__name__)

OWNERS = "slack owners"
TOLD = "as a direct message on Slack"
ONE_AT_A_TIME_S = 30.0
LATE_S = 3600.0
"""A warning that is older than this is not news any more."""


class OwnerMessages:
    """``tell`` may be called from any thread. It is a ``Sink`` too: ``take`` tells what was done."""

    def __init__(
        self,
        chat: Chat,
        notebook: Notebook,
        *,
        cluster: str,
        links: Links,
        look: Look,
        draw: Plot | None,
        wall_s: Callable[[], float],
    ) -> None:
        self._chat = chat
        self._notebook = notebook
        self._cluster = cluster
        self._links = links
        self._look = look
        self._draw = draw
        self._wall_s = wall_s
        self._attempts = Attempts()
        self._telling = threading.Lock()

    @property
    def name(self) -> str:
        return OWNERS

    def tell(self, decision: Decision, story: Story) -> str:
        """Tell the owner of the incident's job what the policy wants them to know; returns where it went, for people.

        The same decision again says nothing, and returns the same. Raises ``RetryLaterError``, and ``RefusedError`` for
        a user whom nobody knows on Slack.
        """
        if not self._telling.acquire(timeout=ONE_AT_A_TIME_S):
            raise RetryLaterError("Slack is slow: another owner is still being told")
        try:
            return self._tell(decision, story)
        finally:
            self._telling.release()

    def take(self, stories: Sequence[Story]) -> None:
        """As the port ``Sink`` says: what was done, as replies to what the owner was told."""
        with self._attempts.round(self._wall_s()):
            for story in stories:
                what = f"what was done about incident {story.incident.number}"
                self._attempts.make(what, partial(self._follow, story))

    def _tell(self, decision: Decision, story: Story) -> str:
        key, now_s = _told_key(decision), self._wall_s()
        if self._notebook.said(OWNERS, key) is None:
            message = self._look.owner_message(
                decision, story, cluster=self._cluster, links=self._links, now_unix_s=now_s
            )
            posted = self._chat.post(self._conversation(story.incident.user_name), message)
            self._note(incident_key(story.incident), posted, story)
            self._note(key, posted, story)
            self._add_plot(story, posted, now_s)
        return TOLD

    def _conversation(self, user_name: str) -> str:
        channel = self._chat.direct(user_name)
        if channel is None:
            raise RefusedError(
                f"nobody on Slack is known to be the user {user_name!r}: add a line for them to the file that "
                "slack_users_file names, or set slack_email_domain (docs/slack.md)"
            )
        return channel

    def _add_plot(self, story: Story, posted: Posted, now_s: float) -> None:
        if self._draw is None or not story.memory:
            return
        try:
            upload_plot(self._chat, self._draw, story, thread=posted, now_unix_s=now_s)
        except (RetryLaterError, RefusedError) as error:
            log.warning("the owner of incident %d is told without a plot: %s", story.incident.number, error)

    def _follow(self, story: Story) -> bool:
        said = self._tell_late(story)
        for record in sorted(filter(_was_acted, story.decisions), key=ended_s):
            key, thread = f"done/{decision_digest(record.decision)}", self._thread(story)
            if thread is not None and self._notebook.said(OWNERS, key) is None:
                self._chat.post(thread.channel, self._look.owner_followup(record), thread=thread)
                self._note(key, thread, story)
                said = True
        return said

    def _tell_late(self, story: Story) -> bool:
        """What the owner was told in the terminal alone, because Slack or this process was away: the latest of it, as
        long as it matters."""
        known = [record for record in story.decisions if _was_told(record) and self._is_missing(record)]
        if not (known and story.incident.is_open and self._wall_s() - ended_s(known[-1]) <= LATE_S):
            return False
        latest = known[-1].decision
        if self._chat.direct(story.incident.user_name) is None:
            return False  # they have a terminal, and that is all
        self.tell(latest, story)
        thread = self._thread(story)
        for record in known[:-1]:
            if thread is not None:
                self._note(_told_key(record.decision), thread, story)
        return True

    def _is_missing(self, record: DecisionRecord) -> bool:
        return self._notebook.said(OWNERS, _told_key(record.decision)) is None

    def _thread(self, story: Story) -> Posted | None:
        """The latest message to the owner about an incident."""
        return posted_from(self._notebook.said(OWNERS, incident_key(story.incident)))

    def _note(self, key: str, posted: Posted, story: Story) -> None:
        self._notebook.say(OWNERS, key, json.dumps(posted), over=not story.incident.is_open)


def _told_key(decision: Decision) -> str:
    return f"told/{decision_digest(decision)}"


def _was_told(record: DecisionRecord) -> bool:
    return record.decision.action is ActionKind.NOTIFY and record.outcome is Outcome.DONE


def _was_acted(record: DecisionRecord) -> bool:
    return record.decision.action.is_acting and has_ended(record)
