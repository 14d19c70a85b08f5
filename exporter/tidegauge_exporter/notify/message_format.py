"""How messages look is somebody else's: the port to it. ``slack.messages`` and ``slack.plot`` answer it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegauge.core.incidents import IncidentChange
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.chat import Message
from tidegauge_exporter.messages.values import AlertGroup, Story


class MessageFormat(Protocol):
    """Values in, messages out; the same for the same values."""

    def incident_message(self, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
        """The head of an incident's thread, as it stands now."""

    def change_reply(self, change: IncidentChange) -> Message:
        """One line of its history."""

    def action_reply(self, record: DecisionRecord) -> Message:
        """What came of one decision, or why it was not carried out."""

    def owner_message(
        self, decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
    ) -> Message:
        """To the owner of the job, directly."""

    def owner_followup(self, record: DecisionRecord) -> Message:
        """What was done to the owner's job."""

    def owner_evidence(self, story: Story) -> Message:
        """What keeps the memory of the owner's job."""

    def alert_message(self, group: AlertGroup, *, links: Links) -> Message:
        """Alerts of the cluster itself."""

    def storm_message(self, stories: Sequence[Story], *, cluster: str, links: Links, now_unix_s: float) -> Message:
        """The head of the one thread for many incidents."""


class PlotDrawer(Protocol):
    """Draws the memory of the rank to look at first, with its forecast."""

    def __call__(self, story: Story, *, now_unix_s: float) -> bytes | None:
        """A PNG; ``None``: there is nothing to draw."""
