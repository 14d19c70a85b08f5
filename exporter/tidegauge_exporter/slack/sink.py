"""The admins' channel on Slack: one thread an incident, one a storm, one message a group of alerts. An out-of-memory
error goes into the thread of the growth that it ended; replicas of a server that are told as one have one thread.

The journal has each message before the next is sent: a crash between the two repeats one message, and loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tidegauge.core.incidents import IncidentChange
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.verdicts import Severity
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import INCIDENT_ALERT, Alert, AlertGroup, Story
from tidegauge_exporter.notify.alert_posts import AlertPosts
from tidegauge_exporter.notify.deliveries import CountedChat, Deliveries
from tidegauge_exporter.notify.delivery_journal import DeliveryJournal
from tidegauge_exporter.notify.plots import upload_plot
from tidegauge_exporter.notify.ports import Chat, Message, MessageFormat, PlotDrawer, Posted, RefusedError
from tidegauge_exporter.notify.replicas import affected, told_as_one
from tidegauge_exporter.notify.retries import Attempts, is_due
from tidegauge_exporter.notify.storms import UPDATES, Storms
from tidegauge_exporter.notify.story_lines import (
    StoryLine,
    digest,
    face,
    incident_key,
    left_out_message,
    new_lines,
)
from tidegauge_exporter.notify.threads import SLACK, Thread, from_text, to_text

log = logging.getLogger(__name__)

FIGURES_EVERY_S = 300.0
"""Pause between updates of a thread's head for figures alone; state and severity are updated at once."""
PLOTS = "plots"
"""The kind of attempts that upload a file."""
MAX_DIGITS = 15
BORN = "born"
"""The key of the time since which incidents are posted; those that were over before are not."""


class SlackSink:
    """The sink that posts to the channel. One thread calls ``take``; ``take_group`` may be called from any.

    ``wait_for_release``: Alertmanager decides when an incident is posted, by its notification (``take_group``), unless
    ``release_all`` says that it cannot be reached. ``draw=None``: no plots.
    """

    name = SLACK

    def __init__(
        self,
        chat: Chat,
        journal: DeliveryJournal,
        *,
        channel: str,
        cluster: str,
        links: Links,
        wait_for_release: bool,
        look: MessageFormat,
        draw: PlotDrawer | None,
        wall_s: Callable[[], float],
        release_all: Callable[[], bool] = lambda: False,
    ) -> None:
        self.deliveries = Deliveries(wall_s=wall_s)
        chat = CountedChat(chat, self.deliveries)
        self._chat = chat
        self._journal = journal
        self._channel = channel
        self._cluster = cluster
        self._links = links
        self._wait_for_release = wait_for_release
        self._release_all = release_all
        self._look = look
        self._draw = draw
        self._wall_s = wall_s
        self._attempts = Attempts()
        self._storms = Storms(chat, journal, channel=channel, cluster=cluster, links=links, look=look)
        self._alerts = AlertPosts(chat, journal, channel=channel, links=links, look=look, wall_s=wall_s)

    def take(self, stories: Sequence[Story]) -> None:
        """Post new threads and updates. Heads of threads come first, so that many replies delay no incident. While one
        of Slack's methods fails (to post, to update, to upload), what the others do goes on."""
        now_s, stories = self._wall_s(), told_as_one(stories)
        if self._journal.said(SLACK, BORN) is None:
            self._journal.say(SLACK, BORN, repr(now_s))
        with self._attempts.round(now_s):
            self._begin_threads(stories, now_s)
            threads = [(story, thread) for story in stories if (thread := self._thread(story)) is not None]
            for story, thread in threads:
                if self._is_outdated(story, thread, now_s):
                    news = partial(self._show, story, thread, now_s)
                    self._attempts.make(f"the news of {_name(story)}", news, kind=UPDATES)
            self._storms.update(stories, now_s, self._attempts)
            for story, thread in threads:
                if not thread.in_storm:
                    plot = partial(self._plot, story, now_s)
                    self._attempts.make(f"the plot of {_name(story)}", plot, kind=PLOTS)
                    self._attempts.make(f"a line about {_name(story)}", partial(self._tell_lines, story))
                    self._attempts.make(f"the replicas of {_name(story)}", partial(self._tell_replicas, story))

    def check(self) -> None:
        self._chat.check(owners=False, plots=self._draw is not None)

    def take_group(self, group: AlertGroup) -> None:
        """Take a notification of Alertmanager: it releases incidents, and other alerts are posted.

        The same notification again changes nothing. Raises ``RetryLaterError`` and ``RefusedError``.
        """
        for alert in group.alerts:
            if alert.name == INCIDENT_ALERT and alert.firing and alert.labels.get("cluster") == self._cluster:
                self._release(alert)
        others = tuple(alert for alert in group.alerts if alert.name != INCIDENT_ALERT)
        if others:
            self._alerts.tell(replace(group, alerts=others, firing=any(alert.firing for alert in others)))

    def _release(self, alert: Alert) -> None:
        number = alert.labels.get("incident", "")
        if number.isascii() and number.isdigit() and len(number) <= MAX_DIGITS:
            self._journal.say(SLACK, _release_key(int(number)), "1", over=True)

    def _begin_threads(self, stories: Iterable[Story], now_s: float) -> None:
        growth = self._growth_of_errors(stories)
        wanted = [story for story in stories if self._thread(story) is None and self._is_news(story, growth)]
        numbers = {story.incident.number for story in wanted}
        joining = [
            (story, before)
            for story in wanted
            if (before := growth.get(story.incident.number)) is not None
            and (self._thread(before) is not None or before.incident.number in numbers)
        ]
        joined = {story.incident.number for story, _ in joining}
        alone, together = self._storms.divide([one for one in wanted if one.incident.number not in joined], now_s)
        for story in alone:
            self._attempts.make(f"the thread of {_name(story)}", partial(self._begin, story, now_s))
        if together:
            self._attempts.make("the thread of a storm", partial(self._storms.gather, together, now_s))
        for story in together:
            storm = self._storms.of(story)
            if storm is not None:
                self._attempts.make(f"the thread of {_name(story)}", partial(self._begin, story, now_s, within=storm))
        for story, before in joining:
            thread = self._thread(before)
            if thread is not None:  # else in a later round
                within = self._storms.of(before) if thread.in_storm else thread.posted
                self._attempts.make(f"the news of {_name(story)}", partial(self._begin, story, now_s, within=within))

    def _growth_of_errors(self, stories: Iterable[Story]) -> Mapping[int, Story]:
        """The story of the growth that an out-of-memory error came in, by number of the error: it is one thread."""
        known = {story.incident.number: story for story in stories}
        return {
            number: known[story.incident.grew_in]
            for number, story in known.items()
            if story.incident.grew_in is not None and story.incident.grew_in in known
        }

    def _is_news(self, story: Story, growth: Mapping[int, Story]) -> bool:
        incident = story.incident
        if _worst(story).level < Severity.WARNING.level:
            return False
        if self._wait_for_release:
            before = growth.get(incident.number)
            errors = [number for number, one in growth.items() if one is story]
            told = (incident.number, *errors)
            released = any(self._journal.said(SLACK, _release_key(number)) is not None for number in told)
            goes_on = before is not None and self._thread(before) is not None
            return released or goes_on or (incident.is_open and self._release_all())
        born_s = float(self._journal.said(SLACK, BORN) or 0.0)
        return incident.closed_unix_s is None or incident.closed_unix_s >= born_s

    def _begin(self, story: Story, now_s: float, *, within: Posted | None = None) -> bool:
        """Post the head, ``within`` the thread of another message."""
        message = self._head(story, now_s)
        channel, ts = self._chat.post(self._channel if within is None else within.channel, message, thread=within)
        body, in_storm, many = digest(repr(message)), within is not None, affected(story)
        self._write(story, Thread(channel, ts, face(story), body, now_s, in_storm, replicas=many))
        if within is None:
            self._storms.note_thread(story, now_s)
        return True

    def _is_outdated(self, story: Story, thread: Thread, now_s: float) -> bool:
        if face(story) != thread.face:
            return True
        may_move = story.incident.is_open and not thread.in_storm
        return may_move and is_due(thread.shown_unix_s, FIGURES_EVERY_S, now_unix_s=now_s)

    def _show(self, story: Story, thread: Thread, now_s: float) -> bool:
        message = self._head(story, now_s)
        body = digest(repr(message))
        if body != thread.body:
            self._chat.update(thread.posted, message)
        self._write(story, replace(thread, face=face(story), body=body, shown_unix_s=now_s))
        return body != thread.body

    def _plot(self, story: Story, now_s: float) -> bool:
        """Upload the plot once, and again when the severity rises. A plot that Slack refuses is left out."""
        thread, worst = self._thread(story), _worst(story)
        if self._draw is None or thread is None or not story.memory:
            return False
        if thread.plotted and (worst.level <= Severity(thread.plotted).level or not story.incident.is_open):
            return False
        uploaded = False
        try:
            uploaded = upload_plot(self._chat, self._draw, story, thread=thread.posted, now_unix_s=now_s)
        except RefusedError as error:
            log.warning("the plot of %s was refused and is left out: %s", _name(story), error)
            self.deliveries.drop()
        self._write(story, replace(thread, plotted=worst.value))
        return uploaded

    def _tell_lines(self, story: Story) -> bool:
        thread = self._thread(story)
        if thread is None:
            return False
        batch = new_lines(story, thread.told, told_before_unix_s=thread.told_before_unix_s)
        if batch.left_out:
            self._chat.post(thread.channel, left_out_message(len(batch.left_out)), thread=thread.posted)
            keys = [line.key for line in batch.left_out]
            thread = self._write(story, thread.with_told(*keys, at_unix_s=batch.left_out[-1].at_unix_s))
        for line in batch.lines:
            self._chat.post(thread.channel, self._reply(line), thread=thread.posted)
            thread = self._write(story, thread.with_told(line.key, at_unix_s=line.at_unix_s))
        return bool(batch.lines)

    def _tell_replicas(self, story: Story) -> bool:
        """Tell that twice as many replicas of a server are affected as the latest message says: nobody is notified of
        edits."""
        thread, many = self._thread(story), affected(story)
        if thread is None or many < 2 * max(1, thread.replicas):
            return False
        self._chat.post(thread.channel, self._look.replicas_reply(story), thread=thread.posted)
        self._write(story, replace(thread, replicas=many))
        return True

    def _head(self, story: Story, now_s: float) -> Message:
        return self._look.incident_message(story, cluster=self._cluster, links=self._links, now_unix_s=now_s)

    def _reply(self, line: StoryLine) -> Message:
        if isinstance(line.what, IncidentChange):
            return self._look.change_reply(line.what)
        if isinstance(line.what, PersonAct):
            return self._look.act_reply(line.what)
        return self._look.action_reply(line.what)

    def _thread(self, story: Story) -> Thread | None:
        return from_text(Thread, self._journal.said(SLACK, incident_key(story.incident)))

    def _write(self, story: Story, thread: Thread) -> Thread:
        self._journal.say(SLACK, incident_key(story.incident), to_text(thread), over=not story.incident.is_open)
        return thread


def _worst(story: Story) -> Severity:
    now, worst = story.incident.severity, story.incident.worst_severity
    return now if worst is None else max(now, worst, key=lambda severity: severity.level)


def _release_key(number: int) -> str:
    return f"release/{number}"


def _name(story: Story) -> str:
    return f"incident {story.incident.number}"
