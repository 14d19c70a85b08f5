"""A queue of workloads: each key once, with one worker at a time, and with growing pauses after failures. Namespaces
take turns, so that nobody's many keys hold up another's."""

from __future__ import annotations

import heapq
import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

MIN_GAP_S = 1.0
"""Between two looks at the same key: a thousand writes a second on an object cost no more than that."""
FIRST_RETRY_S = 1.0
MAX_RETRY_S = 60.0
_CHANCE = random.Random()  # an own one: threads must not disturb what others drew by a seed


class WorkKey(NamedTuple):
    """The key of a workload."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class WorkQueue:
    """The queue. Thread-safe. ``jitter`` gives numbers from 0 to 1, which spread retries of keys that failed
    together. ``at_once``: the most workers that one namespace has."""

    def __init__(
        self,
        *,
        at_once: int = 3,
        monotonic_s: Callable[[], float] = time.monotonic,
        jitter: Callable[[], float] = _CHANCE.random,
    ) -> None:
        self._at_once = at_once
        self._monotonic_s = monotonic_s
        self._jitter = jitter
        self._changed = threading.Condition()
        self._due_s: dict[WorkKey, float] = {}
        """The due time of every waiting key. A heap may hold older times of the same key, which do not count."""
        self._heaps: dict[str, list[tuple[float, int, WorkKey]]] = {}
        """By namespace, in the order of their turns."""
        self._order = itertools.count()
        self._working: set[WorkKey] = set()
        self._failures: dict[WorkKey, int] = {}
        self._not_before_s: dict[WorkKey, float] = {}

    def __len__(self) -> int:
        """The number of keys that wait or are being worked on."""
        with self._changed:
            return len(self._due_s.keys() | self._working)

    def add(self, key: WorkKey, *, after_s: float = 0.0) -> None:
        """Queue the key; if it waits already, at the earlier time. While a worker has it: once more afterwards."""
        with self._changed:
            self._add(key, self._monotonic_s() + after_s)

    def take(self, timeout_s: float) -> WorkKey | None:
        """The next key that is due, of the next namespace in turn: the caller's alone until ``done`` or ``failed``.
        ``None`` if none is in time."""
        deadline_s = self._monotonic_s() + timeout_s
        with self._changed:
            while True:
                now_s = self._monotonic_s()
                wake_s = deadline_s
                for namespace in list(self._heaps):
                    if sum(key.namespace == namespace for key in self._working) >= self._at_once:
                        continue  # ``done`` and ``failed`` wake us
                    due_s = self._next_due_s(namespace)
                    if due_s <= now_s:
                        return self._hand_out(namespace)
                    wake_s = min(wake_s, due_s)
                if now_s >= deadline_s:
                    return None
                self._changed.wait(wake_s - now_s)

    def done(self, key: WorkKey, *, again_s: float | None = None) -> None:
        """Give the key back after success; ``again_s``: queue it again for then."""
        with self._changed:
            self._failures.pop(key, None)
            self._give_back(key, MIN_GAP_S, again_s)

    def failed(self, key: WorkKey, *, retry_after_s: float = 0.0) -> None:
        """Give the key back after a failure: it is due after ``retry_after_s`` at least, and after twice as long for
        each failure in a row. A change of the object does not hasten that."""
        with self._changed:
            failures = self._failures.get(key, 0)
            self._failures[key] = failures + 1
            longest_s = min(MAX_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 10))
            wait_s = max(longest_s * (0.5 + 0.5 * self._jitter()), retry_after_s)
            self._give_back(key, wait_s, wait_s)

    def clear(self) -> None:
        """Forget the waiting keys (another process leads now). Workers still give back theirs."""
        with self._changed:
            self._due_s.clear()
            self._heaps.clear()
            self._failures.clear()
            self._not_before_s.clear()

    def _hand_out(self, namespace: str) -> WorkKey:
        heap = self._heaps.pop(namespace)
        key = heapq.heappop(heap)[2]
        if heap:
            self._heaps[namespace] = heap  # as the last
        del self._due_s[key]
        self._working.add(key)
        return key

    def _give_back(self, key: WorkKey, gap_s: float, again_s: float | None) -> None:
        now_s = self._monotonic_s()
        self._working.discard(key)
        self._not_before_s = {known: until_s for known, until_s in self._not_before_s.items() if until_s > now_s}
        self._not_before_s[key] = now_s + gap_s
        wanted_s = self._due_s.pop(key, None)
        if again_s is not None:
            wanted_s = min(now_s + again_s, now_s + again_s if wanted_s is None else wanted_s)
        if wanted_s is not None:
            self._add(key, wanted_s)
        self._changed.notify()

    def _add(self, key: WorkKey, due_s: float) -> None:
        due_s = max(due_s, self._not_before_s.get(key, due_s))
        if due_s >= self._due_s.get(key, float("inf")):
            return
        self._due_s[key] = due_s
        heapq.heappush(self._heaps.setdefault(key.namespace, []), (due_s, next(self._order), key))
        self._changed.notify()

    def _next_due_s(self, namespace: str) -> float:
        """The time of the first entry of its heap that still counts; infinite without one."""
        heap = self._heaps[namespace]
        while heap and (self._due_s.get(heap[0][2]) != heap[0][0] or heap[0][2] in self._working):
            heapq.heappop(heap)
        if not heap:
            del self._heaps[namespace]
        return heap[0][0] if heap else math.inf
