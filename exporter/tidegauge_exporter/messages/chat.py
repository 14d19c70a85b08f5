"""The port to a chat: what the notifier needs of Slack, and nothing of how Slack does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


class Message(NamedTuple):
    """One message."""

    text: str
    """The whole in a line or two: notifications, search, screen readers."""
    blocks: tuple[Mapping[str, Any], ...] = ()
    """Block Kit; empty: ``text`` alone."""


class Posted(NamedTuple):
    """A message that is there: what replies and updates refer to."""

    channel: str
    """Slack's id of the conversation, also where it was posted by name."""
    ts: str


class Chat(Protocol):
    """Every method raises ``notify.ports.RetryLaterError`` or ``RefusedError``, and blocks for seconds at most."""

    def post(self, channel: str, message: Message, *, thread: Posted | None = None) -> Posted:
        """Into a channel (name with #, or id), or as a reply to ``thread``."""

    def update(self, posted: Posted, message: Message) -> None:
        """Replace what a message says."""

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        """An image as a reply to ``thread``."""

    def direct(self, user_name: str) -> str | None:
        """The conversation with this user of the cluster; ``None``: nobody knows who that is on Slack."""
