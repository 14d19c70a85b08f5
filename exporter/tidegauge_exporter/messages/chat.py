"""The port to a chat, which ``slack.client`` implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol


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
    """A chat. Methods raise ``notify.ports.RetryLaterError`` or ``RefusedError``, and block for seconds at most."""

    def post(self, channel: str, message: Message, *, thread: Posted | None = None) -> Posted:
        """Post into a channel (name with #, or id), or as a reply to ``thread``."""

    def update(self, posted: Posted, message: Message) -> None:
        """Replace a message."""

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        """Post an image as a reply to ``thread``."""

    def direct(self, user_name: str) -> str | None:
        """The conversation with this user of the cluster; ``None``: no Slack account is known."""
