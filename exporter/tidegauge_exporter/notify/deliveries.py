"""Counts of what became of each notification that was sent to a receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from tidegauge_exporter.notify.ports import Chat, Message, NotYetError, Posted, RefusedError, RetryLaterError


class DeliveryOutcome(str, Enum):
    """What became of one attempt to send a notification."""

    DELIVERED = "delivered"
    """The receiver accepted it."""
    RETRIED = "retried"
    """It failed for now (away, rate limit, an error of the receiver), and is sent again."""
    REFUSED = "refused"
    """The receiver refuses it until a person corrects something; it is sent again, except a plot."""
    DROPPED = "dropped"
    """It is never sent: too old, too many, or a plot that failed."""


class DeliveryFigures(NamedTuple):
    """The counts of one receiver since the start of the process."""

    totals: Mapping[DeliveryOutcome, int]
    """One of each outcome."""
    last_success_unix_s: float | None


class Deliveries:
    """The counts of one receiver. Thread-safe."""

    def __init__(self, *, wall_s: Callable[[], float] = time.time) -> None:
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._totals = dict.fromkeys(DeliveryOutcome, 0)
        self._last_success_unix_s: float | None = None

    @contextmanager
    def attempt(self, *, is_message: bool = True) -> Iterator[None]:
        """Count what becomes of the block. ``is_message=False``: it only leads to a message, so that its success is
        none."""
        try:
            yield
        except NotYetError:
            raise
        except RetryLaterError:
            self._count(DeliveryOutcome.RETRIED)
            raise
        except RefusedError:
            self._count(DeliveryOutcome.REFUSED)
            raise
        if is_message:
            self._count(DeliveryOutcome.DELIVERED)

    def drop(self, count: int = 1) -> None:
        """Count notifications that are never sent."""
        self._count(DeliveryOutcome.DROPPED, count)

    def figures(self) -> DeliveryFigures:
        with self._lock:
            return DeliveryFigures(dict(self._totals), self._last_success_unix_s)

    def _count(self, outcome: DeliveryOutcome, count: int = 1) -> None:
        with self._lock:
            self._totals[outcome] += count
            if outcome is DeliveryOutcome.DELIVERED:
                self._last_success_unix_s = self._wall_s()


class CountedChat:
    """``chat`` as it is, with its messages counted."""

    def __init__(self, chat: Chat, deliveries: Deliveries) -> None:
        self._chat = chat
        self._deliveries = deliveries

    def post(
        self, channel: str, message: Message, *, thread: Posted | None = None, beside_thread: bool = False
    ) -> Posted:
        with self._deliveries.attempt():
            return self._chat.post(channel, message, thread=thread, beside_thread=beside_thread)

    def update(self, posted: Posted, message: Message) -> None:
        with self._deliveries.attempt():
            self._chat.update(posted, message)

    def upload(self, png: bytes, *, title: str, alt_text: str, thread: Posted) -> None:
        with self._deliveries.attempt():
            self._chat.upload(png, title=title, alt_text=alt_text, thread=thread)

    def direct(self, user_name: str) -> str | None:
        with self._deliveries.attempt(is_message=False):
            return self._chat.direct(user_name)

    def check(self, *, owners: bool, plots: bool) -> None:
        self._chat.check(owners=owners, plots=plots)
