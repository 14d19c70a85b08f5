"""Owners on Slack: a direct message, with the plot and later actions as replies."""

from __future__ import annotations

import logging

from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import CountedChat, Deliveries
from tidegauge_exporter.notify.plots import upload_plot
from tidegauge_exporter.notify.ports import (
    Chat,
    Message,
    MessageFormat,
    PlotDrawer,
    Posted,
    RefusedError,
    RetryLaterError,
)

log = logging.getLogger(__name__)


class SlackWay:
    """The ``OwnerWay`` by direct messages. ``draw=None``: no plots."""

    def __init__(self, chat: Chat, *, cluster: str, links: Links, look: MessageFormat, draw: PlotDrawer | None) -> None:
        self.deliveries = Deliveries()
        self._chat = CountedChat(chat, self.deliveries)
        self._cluster = cluster
        self._links = links
        self._look = look
        self._draw = draw

    name = "slack owners"
    told = "Slack DM"

    def check(self) -> None:
        self._chat.check(owners=True, plots=self._draw is not None)

    def reaches(self, user_name: str) -> bool:
        return self._chat.direct(user_name) is not None

    def tell(self, decision: Decision, story: Story, *, before: Posted | None, now_unix_s: float) -> Posted:
        """Each message begins a thread. That of an error goes on the thread of the growth before it, and is shown
        beside it too: Slack does not notify of replies to a thread that one did not write in."""
        message = self._owner_message(decision, story, now_unix_s)
        channel = self._conversation(story.incident.user_name)
        if before is None or story.incident.grew_in is None:
            return self._chat.post(channel, message)
        self._chat.post(before.channel, message, thread=before, beside_thread=True)
        return before

    @property
    def revises(self) -> bool:
        return self._look.revises_owner

    def revise(self, decision: Decision, story: Story, *, posted: Posted, now_unix_s: float) -> None:
        if story.incident.grew_in is None:  # else the message at ``posted`` is that of the growth
            self._chat.update(posted, self._owner_message(decision, story, now_unix_s))

    def _owner_message(self, decision: Decision, story: Story, now_unix_s: float) -> Message:
        return self._look.owner_message(
            decision, story, cluster=self._cluster, links=self._links, now_unix_s=now_unix_s
        )

    def complete(self, story: Story, posted: Posted, *, now_unix_s: float) -> None:
        """Upload the plot."""
        if self._draw is None or not story.memory:
            return
        try:
            upload_plot(self._chat, self._draw, story, thread=posted, now_unix_s=now_unix_s)
        except (RetryLaterError, RefusedError) as error:
            log.warning("the plot for the owner of incident %d is left out: %s", story.incident.number, error)
            self.deliveries.drop()

    def follow(self, record: DecisionRecord, story: Story, *, posted: Posted) -> None:  # noqa: ARG002 - the thread says it
        self._chat.post(posted.channel, self._look.owner_followup(record), thread=posted)

    def explain(self, story: Story, *, posted: Posted) -> None:
        self._chat.post(posted.channel, self._look.owner_evidence(story), thread=posted)

    def count(self, story: Story, *, posted: Posted) -> None:
        self._chat.post(posted.channel, self._look.replicas_reply(story), thread=posted)

    def _conversation(self, user_name: str) -> str:
        channel = self._chat.direct(user_name)
        if channel is None:
            raise RefusedError(
                f"no Slack account known for user {user_name!r}: add a line for them to slack_users_file, or set "
                "slack_email_domain (docs/slack.md)"
            )
        return channel
