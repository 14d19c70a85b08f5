"""The notifier: one thread asks the service for stories, one thread a sink hands them over.

A sink that is dead, hangs or refuses has its own thread wait, and nobody else's. Nothing here knows what a sink says.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from tidegauge_exporter.notify.ports import RetryLaterError, Sink, StoryFeed
from tidegauge_exporter.notify.sink_worker import MAX_WAIT_S, PartStatus, SinkWorker

log = logging.getLogger(__name__)

FETCH_EVERY_S = 2.0
FETCH_SHARE = 10
"""After a fetch, this many times as long as it took passes before the next: asking is no load."""
MAX_BACK_OFF_S = 30.0
"""Between two questions, whatever happened: alerts of Alertmanager that are not refreshed for four minutes end."""
LOOK_BACK_S = 7 * 86400.0
"""At the start: incidents that were closed while no notifier ran are still told of, as closed."""
OVERLAP_S = 1800.0
"""Later on: what came of a decision may be known a quarter of an hour after its incident was closed. All these stories
are held in memory."""
STOP_WITHIN_S = 5.0


class NotifierStatus(NamedTuple):
    """How those who are told stand, and the service that they are told of."""

    service: PartStatus
    sinks: tuple[PartStatus, ...]


class StoryFetch:
    """Asks the feed and delivers; one call of ``step`` at a time, ``status`` from any thread."""

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
        self._status = PartStatus("service", None, wall_s())

    def step(self) -> float:
        """One question, and the delivery of its answer. Returns the seconds until the next; never raises."""
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
            self._status = PartStatus("service", None, self._wall_s())
        self._failures = 0
        return min(max(FETCH_EVERY_S, FETCH_SHARE * (self._monotonic_s() - began_s)), MAX_BACK_OFF_S)

    @property
    def status(self) -> PartStatus:
        return self._status

    def _failed(self, problem: str, *, least_s: float) -> float:
        self._failures += 1
        if self._failures == 1:
            log.warning("the service does not tell what happens: %s", problem)
        since_unix_s = self._wall_s() if self._failures == 1 else self._status.since_unix_s
        self._status = PartStatus("service", problem, since_unix_s)
        back_off_s = FETCH_EVERY_S * 2.0 ** min(self._failures - 1, 10)
        return max(min(back_off_s, MAX_BACK_OFF_S), min(least_s, MAX_BACK_OFF_S))


class Notifier:
    """``start`` once, ``stop`` at the end; ``status`` from any thread."""

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
        """Ask all threads to end, and wait for them for some seconds. False: a sink hangs, and its thread is left to
        end with the process."""
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

    def _keep_fetching(self) -> None:
        while not self._stopping.is_set():
            wait_s = self._fetch.step()
            with self._delivered:
                self._delivered.notify_all()
            self._stopping.wait(wait_s)

    def _keep_telling(self, worker: SinkWorker) -> None:
        while not self._stopping.is_set():
            with self._delivered:
                wait_s = worker.wait_s()
                if wait_s is None or wait_s > 0.0:
                    self._delivered.wait(wait_s)
                    continue
            worker.hand_over()
