"""The notifier: one thread asks the coordinator for stories, and one thread for each sink hands them over.

A sink that is away, hangs or refuses delays its own thread alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.deliveries import Deliveries, DeliveryFigures
from tidegauge_exporter.notify.ports import RefusedError, RetryLaterError, StoryFeed

log = logging.getLogger(__name__)

MAX_WAIT_S = 300.0
"""Longest wait before a sink is tried again, whatever it asks for (Slack's Retry-After, say)."""
MIN_WAIT_S = 1.0
REFUSED_WAIT_S = 300.0
"""Wait after a refusal, which a person has to resolve."""
DEFECT_WAIT_S = 30.0
PATIENCE_S = 10.0
"""Time for which a sink may ask for a moment (Slack takes one message a second) before that is a problem."""
HANGS_AFTER_S = 60.0
"""Time after which a sink without an answer hangs; sinks answer or fail within seconds."""
CHECK_EVERY_S = 3600.0
"""Pause between two checks of a sink that works; the first is made at the start."""
CHECK_AGAIN_S = 60.0
"""Pause between two checks of a sink with a problem."""
MAX_OWED = 2_000
"""Closed incidents that are kept for a sink that is away; the oldest of more than that are dropped."""


class Sink(Protocol):
    """A recipient of stories: Alertmanager, Slack, Grafana. Each has a thread of its own."""

    @property
    def name(self) -> str:
        """The name in logs and metrics, such as ``slack``."""

    @property
    def deliveries(self) -> Deliveries:
        """Counts of what was sent there."""

    def check(self) -> None:
        """Ask the service whether it is there and accepts our token or password, without sending anything to people.

        Raises ``RetryLaterError`` and ``RefusedError``, whose message says what to do.
        """

    def take(self, stories: Sequence[Story]) -> None:
        """Bring the service in line with these stories: every round gets all of them, most of them unchanged.

        Sends nothing twice, also after a restart. Raises ``RetryLaterError`` (a later round does the rest) and
        ``RefusedError``.
        """


class PartStatus(NamedTuple):
    """The state of one part of the notifier: the coordinator, or a sink."""

    name: str
    problem: str | None
    """A sentence for people; ``None``: it works."""
    since_unix_s: float
    is_tried: bool = True
    """False: it has no problem because nothing has been sent or checked yet."""


class SinkFigures(NamedTuple):
    """The state of one sink in numbers."""

    name: str
    works: bool | None
    """``None``: not tried yet."""
    deliveries: DeliveryFigures
    pending: int = 0
    """Incidents whose latest state the sink has not taken."""
    oldest_pending_s: float = 0.0
    """Seconds for which the first of them has waited; 0 without any."""


class _Result(NamedTuple):
    problem: str | None
    wait_s: float
    """The wait before the next try."""
    patience_s: float = 0.0
    """The time for which it must last before it is a problem."""


class SinkWorker:
    """The stories for one sink, and its state. Thread-safe; ``deliver`` and ``status`` never wait for the sink."""

    def __init__(self, sink: Sink, *, wall_s: Callable[[], float], monotonic_s: Callable[[], float]) -> None:
        self.name = sink.name
        self._sink = sink
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._mail: dict[int, Story] = {}
        """The newest story of each incident: the latest delivery, and closed ones that the sink has not taken."""
        self._owed: set[int] = set()
        """Incidents whose newest story the sink has not taken."""
        self._delivered: frozenset[int] = frozenset()
        self._news = False
        self._not_before_s = float("-inf")
        self._worked_s = monotonic_s()
        """Time of the last success, or of the start."""
        self._began_s: float | None = None
        """Start of the present call of the sink, on the monotonic clock."""
        self._problem: str | None = None
        """The problem with the latest stories."""
        self._check_problem: str | None = None
        self._next_check_s = float("-inf")
        self._is_checked = False
        """Whether a check has ever succeeded."""
        self._told: str | None = None
        """The problem that was logged."""
        self._since_unix_s = wall_s()
        self._taken: Mapping[int, Story] = {}
        """Stories that the sink has taken."""
        self._waits_since_s: Mapping[int, float] = {}
        """Incidents with another story than the one taken, and since when, on the monotonic clock."""

    def deliver(self, stories: Sequence[Story]) -> None:
        """Replace the stories by the coordinator's latest."""
        with self._lock:
            mail = {story.incident.number: story for story in stories}
            self._delivered = frozenset(mail)
            closed = sorted(number for number in self._owed - mail.keys() if not self._mail[number].incident.is_open)
            if len(closed) > MAX_OWED:
                log.error("%s has been away for too long: %d closed incidents are never told there", self.name,
                          len(closed) - MAX_OWED)  # fmt: skip
                self._sink.deliveries.drop(len(closed) - MAX_OWED)
            self._mail = {**{number: self._mail[number] for number in closed[-MAX_OWED:]}, **mail}
            self._owed = set(self._mail)
            self._news = True
            self._note_pending(self._waits_since_s)

    def wait_s(self) -> float | None:
        """Seconds until the next ``hand_over``; ``None``: not before the next delivery."""
        with self._lock:
            return max(0.0, self._not_before_s - self._monotonic_s()) if self._news else None

    def check_wait_s(self) -> float:
        """Seconds until the next ``check``."""
        with self._lock:
            return max(0.0, self._next_check_s - self._monotonic_s())

    def check(self) -> None:
        """Ask the sink whether it would work. Blocks as long as the sink does; never raises."""
        with self._lock:
            self._began_s = self._monotonic_s()
        problem = self._checked()
        with self._lock:
            now_s, self._began_s = self._monotonic_s(), None
            if problem is None and self._check_problem is not None:
                self._not_before_s = float("-inf")  # a person has corrected it, and waits to see whether it helped
            self._is_checked = self._is_checked or problem is None
            self._check_problem = problem
            self._next_check_s = now_s + (CHECK_EVERY_S if problem is None else CHECK_AGAIN_S)
            self._note()

    def hand_over(self) -> None:
        """Give the sink its stories. Blocks as long as the sink does; never raises."""
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
                self._taken = {story.incident.number: story for story in stories}
                self._note_pending({})
            else:
                self._owed |= owed & self._mail.keys()
                self._news = True
                self._next_check_s = min(self._next_check_s, now_s + CHECK_AGAIN_S)
            if result.problem is None or now_s - self._worked_s >= result.patience_s:
                self._problem = result.problem
                self._note()

    def status(self) -> PartStatus:
        with self._lock:
            problem = self._present_problem()
            has_sent = self._sink.deliveries.figures().last_success_unix_s is not None
            is_tried = problem is not None or self._is_checked or has_sent
            return PartStatus(self.name, problem, self._since_unix_s, is_tried)

    def figures(self) -> SinkFigures:
        problem, is_tried = self.status()[1::2]
        with self._lock:
            oldest_s = min(self._waits_since_s.values(), default=None)
            return SinkFigures(
                self.name,
                False if problem is not None else True if is_tried else None,
                self._sink.deliveries.figures(),
                len(self._waits_since_s),
                0.0 if oldest_s is None else self._monotonic_s() - oldest_s,
            )

    def _present_problem(self) -> str | None:
        if self._began_s is not None:
            busy_s = self._monotonic_s() - self._began_s
            if busy_s > HANGS_AFTER_S:
                return f"it was asked {busy_s:.0f} s ago, and has not answered"
        return self._problem or self._check_problem

    def _note_pending(self, since_s: Mapping[int, float]) -> None:
        """Note which incidents wait, those of ``since_s`` since then and the others since now."""
        now_s = self._monotonic_s()
        waiting = [number for number, story in self._mail.items() if self._taken.get(number) is not story]
        self._waits_since_s = {number: since_s.get(number, now_s) for number in waiting}

    def _checked(self) -> str | None:
        """The problem that a check finds."""
        try:
            self._sink.check()
        except (RetryLaterError, RefusedError) as error:
            return str(error)
        except Exception as error:
            if self._check_problem is None:
                log.exception("the check of %s failed", self.name)
            return f"a defect: {error!r}; the log has the traceback"
        return None

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

    def _note(self) -> None:
        """Log when a problem begins or ends."""
        before, problem = self._told, self._problem or self._check_problem
        if (problem is None) is not (before is None):
            self._since_unix_s = self._wall_s()
        if problem is None and before is not None:
            log.info("%s is told again what happens", self.name)
        elif problem is not None and before is None:
            log.warning("%s cannot be told what happens: %s", self.name, problem)
        self._told = problem


FETCH_EVERY_S = 2.0
FETCH_SHARE = 10
"""Pause between two fetches, as a multiple of a fetch's duration, so that they are no load."""
MAX_BACK_OFF_S = 30.0
"""Longest pause between two fetches: alerts of Alertmanager that are not refreshed for four minutes end."""
LOOK_BACK_S = 7 * 86400.0
"""Age of closed incidents in the first fetch: those closed while no notifier ran are still reported, as closed."""
OVERLAP_S = 1800.0
"""Age of closed incidents in later fetches: the outcome of a decision may be known a quarter of an hour after its
incident was closed. All these stories are held in memory."""
STOP_WITHIN_S = 5.0


class NotifierStatus(NamedTuple):
    """The states of the coordinator and of the sinks."""

    service: PartStatus
    sinks: tuple[PartStatus, ...]


class StoryFetch:
    """Fetches stories and delivers them; one call of ``step`` at a time, ``status`` from any thread."""

    def __init__(
        self,
        feed: StoryFeed,
        workers: Sequence[SinkWorker],
        *,
        wall_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._feed = feed
        self._workers = workers
        self._wall_s = wall_s
        self._monotonic_s = monotonic_s
        self._closed_since_unix_s = wall_s() - LOOK_BACK_S
        self._failures = 0
        self.status = PartStatus("service", None, wall_s())

    def step(self) -> float:
        """Fetch and deliver once. Returns the seconds until the next fetch; never raises."""
        began_unix_s, began_s = self._wall_s(), self._monotonic_s()
        try:
            stories = self._feed.stories(closed_since_unix_s=self._closed_since_unix_s)
        except RetryLaterError as error:
            return self._failed(str(error), least_s=min(error.after_s, MAX_WAIT_S))
        except Exception as error:
            if self._failures == 0:
                log.exception("asking the service what happens failed")
            return self._failed(f"a defect: {error!r}; the log has the traceback", least_s=0.0)
        for worker in self._workers:
            worker.deliver(stories)
        self._closed_since_unix_s = began_unix_s - OVERLAP_S
        if self._failures:
            log.info("the service tells again what happens")
            self.status = PartStatus("service", None, self._wall_s())
        self._failures = 0
        return min(max(FETCH_EVERY_S, FETCH_SHARE * (self._monotonic_s() - began_s)), MAX_BACK_OFF_S)

    def _failed(self, problem: str, *, least_s: float) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning("the service does not tell what happens: %s", problem)
        since_unix_s = self._wall_s() if self._failures == 1 else self.status.since_unix_s
        self.status = PartStatus("service", problem, since_unix_s)
        back_off_s = FETCH_EVERY_S * 2.0 ** min(self._failures - 1, 10)
        return max(min(back_off_s, MAX_BACK_OFF_S), min(least_s, MAX_BACK_OFF_S))


class Notifier:
    """Runs the threads of the notifier. ``start`` once, ``stop`` at the end; ``status`` from any thread."""

    def __init__(
        self,
        feed: StoryFeed,
        sinks: Sequence[Sink],
        *,
        wall_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workers = tuple(SinkWorker(sink, wall_s=wall_s, monotonic_s=monotonic_s) for sink in sinks)
        self._fetch = StoryFetch(feed, self._workers, wall_s=wall_s, monotonic_s=monotonic_s)
        self._delivered = threading.Condition()
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        assert not self._threads, "a Notifier is started once"
        self._threads = [threading.Thread(target=self._keep_fetching, name="tidegauge-stories", daemon=True)]
        self._threads += [
            threading.Thread(target=self._keep_telling, args=(worker,), name=f"tidegauge-{worker.name}", daemon=True)
            for worker in self._workers
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> bool:
        """End all threads within some seconds. False: a sink hangs, and its thread ends with the process."""
        self._stopping.set()
        with self._delivered:
            self._delivered.notify_all()
        deadline_s = time.monotonic() + STOP_WITHIN_S
        for thread in self._threads:
            with suppress(RuntimeError):  # one that was never started
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def status(self) -> NotifierStatus:
        return NotifierStatus(self._fetch.status, tuple(worker.status() for worker in self._workers))

    def figures(self) -> tuple[SinkFigures, ...]:
        return tuple(worker.figures() for worker in self._workers)

    def _keep_fetching(self) -> None:
        while not self._stopping.is_set():
            wait_s = self._fetch.step()
            with self._delivered:
                self._delivered.notify_all()
            self._stopping.wait(wait_s)

    def _keep_telling(self, worker: SinkWorker) -> None:
        while not self._stopping.is_set():
            with self._delivered:
                waits_s = [wait_s for wait_s in (worker.wait_s(), worker.check_wait_s()) if wait_s is not None]
                if min(waits_s) > 0.0:
                    self._delivered.wait(min(waits_s))
                    continue
            if worker.check_wait_s() == 0.0:
                worker.check()
            if worker.wait_s() == 0.0:
                worker.hand_over()
