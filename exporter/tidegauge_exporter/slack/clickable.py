"""The messages of ``slack.messages`` with buttons: those of the owner in their own message, one for all in the channel.

Many people read the channel, so it shows nothing that one of them may not use: its one button answers each reader with
what that person may do.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidegauge.core.incidents.actions import Decision
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import Message
from tidegauge_exporter.slack import messages
from tidegauge_exporter.slack.blocks import Block
from tidegauge_exporter.slack.clicks import Buttons, Subject, offered


class ClickableMessages:
    """A ``MessageFormat``."""

    revises_owner = True
    change_reply = staticmethod(messages.change_reply)
    action_reply = staticmethod(messages.action_reply)
    act_reply = staticmethod(messages.act_reply)
    replicas_reply = staticmethod(messages.replicas_reply)
    owner_followup = staticmethod(messages.owner_followup)
    owner_evidence = staticmethod(messages.owner_evidence)
    alert_message = staticmethod(messages.alert_message)
    storm_message = staticmethod(messages.storm_message)

    def __init__(self, buttons: Buttons) -> None:
        self._buttons = buttons

    def incident_message(self, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
        plain = messages.incident_message(story, cluster=cluster, links=links, now_unix_s=now_unix_s)
        if not offered(story.incident):
            return plain
        return _with(plain, self._buttons.menu(Subject.of(story.look_first)))

    def owner_message(
        self, decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
    ) -> Message:
        plain = messages.owner_message(decision, story, cluster=cluster, links=links, now_unix_s=now_unix_s)
        asked = messages.acts_left(story, offered(story.incident), now_unix_s=now_unix_s)
        return _with(plain, self._buttons.row(Subject.of(story.look_first), asked))


def _with(plain: Message, row: Sequence[Block]) -> Message:
    """The message with a row of buttons above its last line."""
    return plain._replace(blocks=(*plain.blocks[:-1], *row, *plain.blocks[-1:]))
