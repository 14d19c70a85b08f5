"""One sink's place in the notifier: what is to be handed to it, when it may be tried again, and how it stands.

No thread in here: ``notifier`` has one that calls ``hand_over`` when ``wait_s`` says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError, Sink

log = logging.getLogger(__name__)

MAX_WAIT_S = 300.0
"""Whatever a sink asks for (Slack's Retry-After, say), it is tried again after five minutes."""
MIN_WAIT_S = 1.0
REFUSED_WAIT_S = 300.0
"""A person has to do something about it; five minutes later the sink takes notice that it was done."""
DEFECT_WAIT_S = 30.0
PATIENCE_S = 10.0
"""A sink that asks for a moment (Slack takes one message a second) is not in trouble before it did so for longer."""
HANGS_AFTER_S = 60.0
"""Sinks answer or fail within seconds; one that does not is said to hang."""
MAX_OWED = 2_000
"""Closed incidents that are kept for a sink that is away; of more than that, the oldest are never told."""


class PartStatus(NamedTuple):
    """How one part of the notifier stands: the service, or a sink."""

    name: str
    problem: str | None
    """For people; ``None``: it works."""
    since_unix_s: float
    """Since when it is so."""


class _Result(NamedTuple):
    problem: str | None
    wait_s: float
    """Before the next try."""
    patience_s: float = 0.0
    """For how long it must have been so before it is a problem."""


class SinkWorker:
    """Thread-safe. ``deliver`` and ``status`` never wait for the sink."""

    def __init__(self, sink: Sink, *, wall_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self._sink = sink
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._mail: dict[int, Story] = {}
        """The newest story of each incident: the latest delivery, and closed ones that have not been taken yet."""
        self._owed: set[int] = set()
        """Incidents whose newest story has not been taken."""
        self._delivered: frozenset[int] = frozenset()
        """The incidents of the latest delivery."""
        self._news = False
        self._not_before_s = float("-inf")
        self._worked_s = monotonic_s()
        """When it last took all, or began to."""
        self._began_s: float | None = None
        """Since when it is being asked, on the monotonic clock."""
        self._problem: str | None = None
        self._since_unix_s = wall_s()

    @property
    def name(self) -> str:
        return self._sink.name

    def deliver(self, stories: Sequence[Story]) -> None:
        """All that the service told just now."""
        with self._lock:
            mail = {story.incident.number: story for story in stories}
            self._delivered = frozenset(mail)
            closed = sorted(number for number in self._owed - mail.keys() if not self._mail[number].incident.is_open)
            if len(closed) > MAX_OWED:
                log.error("%s has been away for too long: %d closed incidents are never told there", self.name,
                          len(closed) - MAX_OWED)  # fmt: skip
            self._mail = {**{number: self._mail[number] for number in closed[-MAX_OWED:]}, **mail}
            self._owed = set(self._mail)
            self._news = True

    def wait_s(self) -> float | None:
        """Seconds until ``hand_over`` is to be called; ``None``: not before the next delivery."""
        with self._lock:
            return max(0.0, self._not_before_s - self._monotonic_s()) if self._news else None

    def hand_over(self) -> None:
        """Have the sink take what is there. Blocks as long as the sink does; never raises."""
        with self._lock:
            stories = [self._mail[number] for number in sorted(self._mail)]
            owed, self._owed, self._news = self._owed, set(), False
            self._began_s = self._monotonic_s()
        result = self._tried(stories)
        with self._lock:
            now_s, self._began_s = self._monotonic_s(), None
            self._not_before_s = now_s + result.wait_s
            if result.problem is None:
                self._worked_s = now_s
                taken = self._mail.keys() - self._delivered - self._owed
                self._mail = {number: story for number, story in self._mail.items() if number not in taken}
            else:
                self._owed |= owed & self._mail.keys()
                self._news = True
            if result.problem is None or now_s - self._worked_s >= result.patience_s:
                self._note(result.problem)

    def status(self) -> PartStatus:
        with self._lock:
            problem = self._problem
            if self._began_s is not None:
                busy_s = self._monotonic_s() - self._began_s
                if busy_s > HANGS_AFTER_S:
                    problem = f"it was asked {busy_s:.0f} s ago, and has not answered"
            return PartStatus(self.name, problem, self._since_unix_s)

    def _tried(self, stories: Sequence[Story]) -> _Result:
        try:
            self._sink.take(stories)
        except RetryLaterError as error:
            return _Result(str(error), min(max(error.after_s, MIN_WAIT_S), MAX_WAIT_S), PATIENCE_S)
        except RefusedError as error:
            return _Result(str(error), REFUSED_WAIT_S)
        except Exception as error:
            if self._problem is None:
                log.exception("%s failed", self.name)
            return _Result(f"a defect: {error!r}; the log has the traceback", DEFECT_WAIT_S)
        return _Result(None, 0.0)

    def _note(self, problem: str | None) -> None:
        before = self._problem
        if (problem is None) is not (before is None):
            self._since_unix_s = self._wall_s()
        if problem is None and before is not None:
            log.info("%s is told again what happens", self.name)
        elif problem is not None and before is None:
            log.warning("%s cannot be told what happens: %s", self.name, problem)
        self._problem = problem
