"""What counts as growth: memory by Tidegauge's own detector, counts by their floors, growth by design by a bound.

Each watch takes readings with ``take`` and says with ``verdict`` how they went. Planted leaks are judged by the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegauge.core.detector import Params, RankDetector
from tidegauge.core.verdicts import LeakState, Signal

MIB = 1 << 20
MIN_GROWTH_BYTES = 2 * MIB
"""Two of CPython's arenas (1 MiB each since 3.10): a process that took one more for good is not growing."""
MAX_GROWTH_BYTES_PER_HOUR = 16 * MIB
"""Whatever the detector says of its shape, in runs of ``RATED_RUN_S``: a day of it is twice what a node pays in all."""
RATED_RUN_S = 1200.0
"""In shorter runs the end of warming up looks like this much an hour."""
WARM_UP_SHARE = 0.25
"""Of the run: imports, first connections, pools, thread stacks, arenas, tables that fill up to their bounds."""
COUNT_PARTS = 8
"""The judged half of a run is cut into so many stretches; each is represented by its floor."""
COUNT_SLACK = 2
"""What a count's floor may rise by: a second connection of a pool, a log file that was rotated. Whatever is lost with
every job, scrape or request rises by hundreds, what is lost with every twentieth job by ten."""

HOST_ONLY = 0
"""What a process of Tidegauge has on a GPU: the detector also wants those signals."""


@dataclass(frozen=True)
class Verdict:
    """How one series went. ``grows`` fails the soak."""

    grows: bool
    word: str


@dataclass
class MemoryWatch:
    """Private memory of one process, put through ``RankDetector`` as the host memory of a rank.

    The detector is the product's, with the product's rules of shape. What differs, because a service of 50 MiB is not a
    rank with gigabytes, is the least growth that counts, and how long it must have lasted: that follows from the run.
    """

    run_s: float
    readings: list[tuple[float, int]] = field(default_factory=list)
    leaked_at_s: float | None = None
    """When it was first called a leak, also if that was taken back later."""

    def __post_init__(self) -> None:
        params = Params(host_min_bytes=MIN_GROWTH_BYTES, host_min_s=0.2 * self.run_s, leak_steps_from_start=120)
        self._detector = RankDetector(params)
        self._step = 0

    def take(self, at_s: float, private_bytes: int) -> None:
        self.readings.append((at_s, private_bytes))
        if at_s < WARM_UP_SHARE * self.run_s:
            return
        self._step += 1
        verdict = self._detector.update(
            step=self._step, time_s=at_s, allocated_bytes=HOST_ONLY, reserved_bytes=HOST_ONLY, host_bytes=private_bytes
        )
        if verdict.state is LeakState.LEAK and self.leaked_at_s is None:
            self.leaked_at_s = at_s

    def verdict(self) -> Verdict:
        last = self._detector.look_now()
        if last.state is LeakState.LEAK and last.signal is Signal.HOST:
            return Verdict(True, "leak")
        rate = self.growth_bytes_per_hour()
        if rate is not None and rate > MAX_GROWTH_BYTES_PER_HOUR and self.run_s >= RATED_RUN_S:
            return Verdict(True, f"{rate / MIB:.0f} MiB an hour")
        if last.state is LeakState.SUSPECTED:
            return Verdict(False, "suspected")
        return Verdict(False, "flat" if self.leaked_at_s is None else "grew, ended")

    def between(self, start_share: float, end_share: float) -> int | None:
        """The median reading within a stretch of the run."""
        found = sorted(b for s, b in self.readings if start_share * self.run_s <= s <= end_share * self.run_s)
        return found[len(found) // 2] if found else None

    def growth_bytes_per_hour(self) -> float | None:
        """From the first quarter after the warm-up to the last, by medians."""
        before, after = self.between(0.25, 0.4375), self.between(0.8125, 1.1)
        if before is None or after is None:
            return None
        return (after - before) / (0.5625 * self.run_s) * 3600


@dataclass
class CountWatch:
    """A number that churn moves up and down: what is never given back shows in its floor."""

    run_s: float
    readings: list[tuple[float, int]] = field(default_factory=list)

    def take(self, at_s: float, count: int) -> None:
        self.readings.append((at_s, count))

    def verdict(self) -> Verdict:
        floors = self.floors()
        if len(floors) < COUNT_PARTS:
            return Verdict(False, "too short")
        risen = min(floors[-2:]) - max(floors[:2])
        steady = sum(after >= before for before, after in zip(floors, floors[1:])) >= COUNT_PARTS - 2
        grows = risen > COUNT_SLACK and steady
        return Verdict(grows, f"floor {floors[0]} to {floors[-1]}" if grows else "flat")

    def floors(self) -> Sequence[int]:
        """The least count in each stretch of the second half; those without a reading are left out."""
        half_s = self.run_s / 2
        parts: list[list[int]] = [[] for _ in range(COUNT_PARTS)]
        for at_s, count in self.readings:
            if at_s >= half_s:
                parts[min(int((at_s - half_s) / half_s * COUNT_PARTS), COUNT_PARTS - 1)].append(count)
        return [min(part) for part in parts if part]


@dataclass
class BoundWatch:
    """What grows by design, such as a database that keeps incidents for 90 days: it has a price each, and a bound."""

    most_bytes_each: float
    most_bytes: float
    """Whatever the number of things that it keeps."""
    last_bytes: int = 0
    last_things: int = 0
    first: tuple[int, int] | None = None

    def take(self, things: int, size_bytes: int) -> None:
        self.first = self.first or (things, size_bytes)
        self.last_things, self.last_bytes = things, size_bytes

    def verdict(self) -> Verdict:
        allowed_bytes = min(self.most_bytes, self.most_bytes_each * max(self.last_things, 0) + MIN_GROWTH_BYTES)
        if self.last_bytes > allowed_bytes:
            return Verdict(True, f"above {allowed_bytes / MIB:.1f} MiB")
        return Verdict(False, "within bound")
