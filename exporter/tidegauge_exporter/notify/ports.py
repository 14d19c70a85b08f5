"""The ports of the notifier: where stories come from, and who is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tidegauge_exporter.messages.values import Story


class RetryLaterError(Exception):
    """The other side does not take it now (away, rate limit, 5xx); the message names it, never a secret."""

    def __init__(self, message: str, *, after_s: float = 30.0) -> None:
        super().__init__(message)
        self.after_s = after_s


class RefusedError(Exception):
    """The other side will never take it as things are (token revoked, unknown channel): a person has to do something.
    The message says what."""


class StoryFeed(Protocol):
    """The service, as the notifier sees it."""

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        """All open incidents, and those that were closed since then. Raises ``RetryLaterError``."""


class Sink(Protocol):
    """Somebody who is told: Alertmanager, Slack, Grafana. Each is driven by a thread of its own."""

    @property
    def name(self) -> str:
        """For logs and metrics: ``slack``."""

    def take(self, stories: Sequence[Story]) -> None:
        """Bring the other side in line with these stories: every round gets all of them, most of them unchanged.

        Says nothing twice, also after a restart. Raises ``RetryLaterError`` (the rest is done in a later round) and
        ``RefusedError``.
        """
