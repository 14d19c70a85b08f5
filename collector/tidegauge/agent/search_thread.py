"""The search thread: looks for what is new on the node, apart from the polls.

Rings, launch records, evidence and containers' run directories lie where anybody may write: on a slow disk,
behind a lock that somebody else holds, among thousands of names and processes. A poll takes what has been found and
waits for none of it, so ranks that are watched stay watched.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress

from tidegauge.agent.container_run_dirs.discovery import Containers
from tidegauge.agent.evidence.collector import EvidenceCollector
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.ports import Clock
from tidegauge.agent.rings.discovery import RingFile
from tidegauge.agent.rings.launches import Launches
from tidegauge.agent.rings.new_rings import FoundRing, RingSearch
from tidegauge.agent.source_health import SkipCounts, SourceHealths
from tidegauge.rate_limited_log import FewLines

_log = logging.getLogger(__name__)

STALE_AFTER_S = 10.0
"""A look that takes longer counts as failing: what is new is not seen meanwhile."""
EARLIEST = 0.9
"""Of the time between two looks: calls of ``look_soon`` come a little early, too."""
MAX_WAIT_S = 0.1
"""Beyond that time for a call of ``look_soon``. Then the search looks all the same: a quiet node is polled more rarely,
and a rank that runs out of memory in its second second has to be seen while it lives."""
CLOSE_WAITS_S = 5.0
MAX_FIRST_LOOKS = 8
"""One look opens a few hundred rings, and of each tenant some eighty."""
FIRST_LOOKS_S = 5.0
"""For so long a start waits for these: a page without the ranks would end their series, and none at all is worse."""
FIRST_REPORT_S = 30.0
"""For so long reports wait for them, and for the opener: one without the ranks would seem to report their end. An agent
that does not report is replaced after 60 s."""


class NodeSearch:
    """Runs the searches. Call either ``look`` or ``start``; the polling thread may call all else at any time."""

    def __init__(
        self,
        rings: RingSearch,
        launches: Launches,
        containers: Containers | None,
        evidence: EvidenceCollector | None,
        skips: SkipCounts,
        clock: Clock,
        opener: Opener | None = None,
    ) -> None:
        """``opener``: a source of its own, where it is another process."""
        self._rings = rings
        self._opener = opener
        self._launches = launches
        self._containers = containers
        self._evidence = evidence
        self._skips = skips
        self._clock = clock
        self._found: deque[FoundRing] = deque()
        self._requests: deque[Callable[[], None]] = deque()
        """Requests of the polls for rings that they released."""
        self._gpu_pids: frozenset[int] = frozenset()
        self._lines = FewLines(_log)
        self._sources = SourceHealths(clock)
        self._began_ns: int | None = None
        """When the look that is under way began."""
        self._thread: threading.Thread | None = None
        self._started_ns = 0
        self._has_looked = threading.Event()
        self.has_found_all = False
        """Whether the ranks that were there at the start have been found."""
        self._on_found: Callable[[], None] = lambda: None
        self._wake = threading.Event()
        """Somebody called ``look_soon``, or the thread is to end."""
        self._ends = False

    @property
    def is_apart(self) -> bool:
        return self._thread is not None

    def start(self, every_s: float, *, on_found: Callable[[], None] = lambda: None) -> None:
        """Look every ``every_s`` until ``close``, at a call of ``look_soon`` where there is one. ``on_found`` is called
        in the thread after rings were found. Returns when the ranks that there are have been found, or after
        ``FIRST_LOOKS_S``."""
        self._on_found = on_found
        if self._evidence is not None:
            self._evidence.is_searched_apart = True
        self._started_ns = self._clock.monotonic_ns()
        self._thread = threading.Thread(target=self._run, args=(every_s,), name="tidegauge-search", daemon=True)
        self._thread.start()
        self._has_looked.wait(FIRST_LOOKS_S)

    def look_soon(self) -> None:
        """Look as soon as the time between two looks is over."""
        self._wake.set()

    @property
    def has_waited(self) -> bool:
        """Whether the ranks that were there at the start are waited for no longer: not for ``FIRST_REPORT_S``, and not
        where each poll searches first."""
        waited_ns = self._clock.monotonic_ns() - self._started_ns
        return not self.is_apart or waited_ns > FIRST_REPORT_S * 1e9

    def close(self) -> bool:
        """End the thread; false if a look hangs, which is not waited for."""
        self._ends = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_WAITS_S)
            if self._thread.is_alive():
                return False
            self._thread = None
        for found in self.found():
            self.forget(found.ring)
        self._do_requests()
        return True

    def look(self) -> int:
        """One look at everything; how many rings it found. Never raises."""
        self._began_ns = self._clock.monotonic_ns()
        now_s = self._began_ns / 1e9
        if self._evidence is not None and self.is_apart:
            self._search_evidence(self._evidence, now_s)  # before anything that lies beside a ring is deleted
        self._do_requests()
        if self._opener is not None:
            with self._measured("opener"):
                self._opener.check()
        if self._containers is not None:
            with self._measured("containers"):
                self._containers.look(now_s, self._gpu_pids, self._skips)
        with self._measured("launches"):
            self._launches.look(now_s)
        found: list[FoundRing] = []
        with self._measured("rings"):
            found = self._rings.look(now_s)
            self._found.extend(found)
        self._began_ns = None
        return len(found)

    def _search_evidence(self, evidence: EvidenceCollector, now_s: float) -> None:
        if self._containers is not None:
            self._containers.poll.begin("evidence")
        try:
            evidence.search(now_s)
        except Exception as error:
            self._lines.say(logging.ERROR, "the search for evidence failed", now_s=now_s, exc_info=error)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Context of looks and requests: gives every tenant the time of one look in containers."""
        if self._containers is None:
            yield
            return
        with self._containers.poll.under_way():
            yield

    def found(self) -> Iterator[FoundRing]:
        """The rings found since the last call."""
        with suppress(IndexError):
            while True:
                yield self._found.popleft()

    def hear_of_gpus(self, pids: frozenset[int]) -> None:
        self._gpu_pids = pids

    @property
    def success(self) -> Mapping[str, bool]:
        """Whether each source's last look worked; no rings are found while the current look hangs."""
        began_ns = self._began_ns
        hangs = began_ns is not None and self.is_apart and self._clock.monotonic_ns() - began_ns > STALE_AFTER_S * 1e9
        return {**self._sources.success, **({"rings": False} if hangs else {})}

    @property
    def duration_s(self) -> Mapping[str, float]:
        """Seconds that each source's last look took."""
        return dict(self._sources.duration_s)

    @property
    def deferred(self) -> Mapping[str, int]:
        """How often work was put off to a later look so far, by reason."""
        put_off = 0 if self._containers is None else self._containers.poll.put_off
        return {**self._rings.deferred, "containers": put_off}

    def forget(self, ring: RingFile) -> None:
        self._request(lambda: self._rings.forget(ring))

    def set_aside(self, ring: RingFile) -> None:
        self._request(lambda: self._rings.set_aside(ring))

    def remove(self, ring: RingFile, now_s: float) -> None:
        self._request(lambda: self._rings.remove(ring, now_s))

    def give_up(self, ring: RingFile, error: Exception, now_s: float) -> None:
        self._request(lambda: self._rings.give_up(ring, error, now_s))

    def _request(self, request: Callable[[], None]) -> None:
        self._requests.append(request)
        if not self.is_apart:
            self._do_requests()

    def _do_requests(self) -> None:
        with suppress(IndexError):
            while True:
                request = self._requests.popleft()
                try:
                    request()
                except Exception:
                    _log.exception("a ring could not be closed")

    def _run(self, every_s: float) -> None:
        looks = 0
        while not self._ends:
            not_before_s = time.monotonic() + EARLIEST * every_s
            with self.under_way():
                found = self.look()
            looks += 1
            if found and looks < MAX_FIRST_LOOKS and not self._has_looked.is_set():
                continue
            if self._sources.success.get("opener", True) and not (found and self._has_looked.is_set()):
                self.has_found_all = True
            self._has_looked.set()
            if found:
                self._on_found()
            self._wait_until_asked(not_before_s, within_s=every_s + MAX_WAIT_S)

    def _wait_until_asked(self, not_before_s: float, *, within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while not self._ends and self._wake.wait(until_s - time.monotonic()):
            self._wake.clear()
            if time.monotonic() >= not_before_s:
                return

    def _measured(self, source: str) -> AbstractContextManager[None]:
        """Measure a source, which has its own time in containers."""
        if self._containers is not None:
            self._containers.poll.begin(source)
        return self._sources.measured(source)
