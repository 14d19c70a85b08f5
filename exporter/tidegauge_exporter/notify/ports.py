"""Ports and errors of the notifier: stories, chats, messages, plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tidegauge.core.incidents import IncidentChange
from tidegauge.core.incidents.actions import Decision, DecisionRecord
from tidegauge.core.incidents.acts import ActKind, ActOutcome, PersonAct
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.values import AlertGroup, Story


class Message(NamedTuple):
    """A message in a chat."""

    text: str
    """The message in a line or two, for notifications, search and screen readers."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """Blocks of Block Kit; empty: ``text`` alone."""


class Posted(NamedTuple):
    """A posted message, to which replies and updates refer."""

    channel: str
    """Slack's id of the conversation, also if it was posted by name."""
    ts: str


class Chat(Protocol):
    """A chat. Methods raise ``RetryLaterError`` and ``RefusedError``, and block for seconds at most."""

    def post(
        self, channel: str, message: Message, *, thread: Posted | None = None, beside_thread: bool = False
    ) -> Posted:
        """Post into a channel (name with #, or id), or as a reply to ``thread``; ``beside_thread``: and also there."""

    def update(self, posted: Posted, message: Message) -> None:
        """Replace a message."""

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        """Post an image as a reply to ``thread``."""

    def direct(self, user_name: str) -> str | None:
        """The conversation with this user of the cluster; ``None``: no Slack account is known."""

    def check(self, *, owners: bool, plots: bool) -> None:
        """Return if the chat accepts the token, and the app may do what is asked of it: post messages, and write to
        ``owners`` and upload ``plots`` too."""


MAX_RETRY_AFTER_S = 3600.0


class RetryLaterError(Exception):
    """The service does not take it now (away, rate limit, 5xx); the message names the service, never a secret."""

    def __init__(self, message: str, *, after_s: float = 30.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class NotYetError(RetryLaterError):
    """Nothing was sent: its turn, or the end of a pause that the service asked for, has not come."""


def retry_after_s(header: str | None) -> float:
    """Seconds that a header ``Retry-After`` asks for, within bounds; without a number 30."""
    try:
        asked_s = float(header or "")
    except ValueError:
        return 30.0
    return min(max(asked_s, 1.0), MAX_RETRY_AFTER_S) if asked_s == asked_s else 30.0


class RefusedError(Exception):
    """The service will never take it as things are (token revoked, unknown channel). The message says what to do."""


class StoryFeed(Protocol):
    """The source of stories: the coordinator."""

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        """Stories of all open incidents, and of those that were closed since then. Raises ``RetryLaterError``."""


class MessageFormat(Protocol):
    """Makes messages of values; ``slack.messages`` implements it."""

    def incident_message(self, story: Story, *, cluster: str, links: Links, now_unix_s: float) -> Message:
        """The present head of an incident's thread."""

    def change_reply(self, change: IncidentChange) -> Message:
        """A reply about one line of its history."""

    def action_reply(self, record: DecisionRecord) -> Message:
        """A reply about the outcome of one decision, or the reason why it was not carried out."""

    def act_reply(self, act: PersonAct) -> Message:
        """A reply about what a person did."""

    def replicas_reply(self, story: Story) -> Message:
        """A reply about how many replicas of a server are affected by now."""

    @property
    def revises_owner(self) -> bool:
        """Whether a message to the owner changes after what people do: it has buttons."""

    def owner_message(
        self, decision: Decision, story: Story, *, cluster: str, links: Links, now_unix_s: float
    ) -> Message:
        """A direct message to the owner of the job."""

    def owner_followup(self, record: DecisionRecord) -> Message:
        """A reply to the owner about an action on the job."""

    def owner_evidence(self, story: Story) -> Message:
        """A reply to the owner about the evidence."""

    def alert_message(self, group: AlertGroup, *, links: Links) -> Message:
        """A message about alerts that are not incidents."""

    def storm_message(self, stories: Sequence[Story], *, cluster: str, links: Links, now_unix_s: float) -> Message:
        """The head of a storm's thread."""


class ActRequest(NamedTuple):
    """What a person asked for, by a chat."""

    request_id: str
    """The same whenever the same request is passed on."""
    number: int
    opened_ms: int
    """When the incident was opened: the number alone would not do."""
    kind: ActKind
    by: str | None
    """Login name on the cluster; ``None``: unknown."""
    account: str
    refused: str | None = None
    """Why it is refused before anybody looks at the incident: to be recorded."""


class ActAnswer(NamedTuple):
    """What became of it, and what the person reads."""

    outcome: ActOutcome
    text: str


class ActDesk(Protocol):
    """Where acts of people are judged and done: the coordinator. Methods raise ``RetryLaterError``."""

    def may(self, number: int, *, by: str) -> Sequence[ActKind] | None:
        """What this person can do about an incident now; ``None``: it is not theirs, or does not exist."""

    def ask(self, request: ActRequest) -> ActAnswer:
        """Have it done, once for one ``request_id``."""


class PlotDrawer(Protocol):
    """Draws the memory of the rank to look at first, with its forecast; ``slack.plot`` implements it."""

    def __call__(self, story: Story, *, now_unix_s: float) -> bytes | None:
        """A PNG, if there is anything to draw."""
