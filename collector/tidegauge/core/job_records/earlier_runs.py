"""What earlier runs of the same job tell of a running one: where its memory stops, and whether it goes beyond. Pure.

Runs are of the same job if user, namespace, job name, script and world size are the same. They say that growth ends
only if the script's contents were the same too, if they filled and then stayed level, and if this run has grown as they
had at the same steps: not faster, not much slower, and not later. A leak that begins anew is one of the three before
long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.core.evidence.growth_bound import EARLIER_RUNS, BoundState, GrowthBound, bounded_verdict, free_bytes
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobEnd, JobRecord, end_by_actions
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.text import one_line
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import Band, LeakState, Signal
from tidegauge.core.views import RankSummary

MIN_EARLIER_RUNS = 3
MAX_EARLIER_RUNS = 12
"""The newest count."""
LEVEL_SHARE, MIN_LEVEL_BYTES = 0.02, 32 << 20
"""Memory is level, or the same in two runs, within the larger of a share of it and this."""
MIN_LEVEL_STEPS_SHARE = 0.5
"""A run stopped growing if it stayed level for so large a part of the steps that it took to fill."""
MIN_LEVEL_POINTS = 3
FASTER, SLOWER = 1.25, 0.7
"""Growth between the same two steps, as a multiple of what it was in earlier runs, is the same growth up to these."""
MAX_GRID_POINTS = 64
MAX_ARGUMENTS_CHARS = 60


class Filling(NamedTuple):
    """Allocated memory of runs of one script that filled and stopped, by step; all their ranks with a curve together.

    ``high_bytes`` and ``low_bytes`` are at most and at least what the runs held at the steps up to ``steps`` and after
    the one before.
    """

    runs: int
    full_step: int
    """The latest at which one was full."""
    full_bytes: Band
    """What they held when they were full, with the memory of a step: lowest, median, highest."""
    steps: tuple[int, ...]
    low_bytes: tuple[int, ...]
    high_bytes: tuple[int, ...]

    def high_at(self, step: int) -> int:
        return self.high_bytes[min(bisect_left(self.steps, step), len(self.steps) - 1)]

    def low_at(self, step: int) -> int:
        return self.low_bytes[min(bisect_left(self.steps, step), len(self.steps) - 1)]


class EarlierRuns(NamedTuple):
    """The newest runs of the same job, ``MIN_EARLIER_RUNS`` at least."""

    runs: int
    last: JobRecord
    highest_bytes: int
    """The highest peak of allocated memory of a rank in any of them."""
    filling: Optional[Filling] = None
    """``None``: they do not show that growth ends."""


def is_earlier_run(run: JobRecord, of: JobRecord) -> bool:
    """Whether ``run`` ended, is of the same job, and came far enough to tell anything."""
    return (
        _job_of(run) == _job_of(of) and run.end is not None and run.steps > 0 and run.started_unix_s < of.started_unix_s
    )


def has_same_script(run: JobRecord, of: JobRecord) -> bool:
    return of.script_sha256 is not None and run.script_sha256 == of.script_sha256


def _job_of(run: JobRecord) -> tuple[object, ...]:
    return run.job.uid, run.namespace, run.job_name, run.script, run.world_size


def earlier_runs(runs: Sequence[JobRecord]) -> Optional[EarlierRuns]:
    """``runs``: all are earlier runs of one job, the newest first."""
    runs = runs[:MAX_EARLIER_RUNS]
    if len(runs) < MIN_EARLIER_RUNS:
        return None
    return EarlierRuns(len(runs), runs[0], max(run.fullest.allocated_bytes for run in runs))


def filling(runs: Sequence[tuple[JobRecord, JobMemory]]) -> Optional[Filling]:
    """How the memory of these runs filled. ``None`` if fewer than ``MIN_EARLIER_RUNS`` filled and stopped, or if one of
    them went on growing, ran out of memory or was ended by the policy."""
    curves: list[Sequence[Sequence[MemoryPoint]]] = []
    growing_from: list[int] = []
    for run, memory in runs:
        if run.end is JobEnd.OOM or run.ooms or end_by_actions(run) is not None:
            return None
        of_run = [points for _, points in memory.curves if len(points) > MIN_LEVEL_POINTS and points[-1].step > 0]
        if of_run and all(_stopped(points) for points in of_run):
            curves.append(of_run)
        else:
            growing_from.append(run.steps)
    if len(curves) < MIN_EARLIER_RUNS:
        return None
    full_step = max(_full_step(points) for of_run in curves for points in of_run)
    if any(steps > full_step for steps in growing_from):
        return None
    ends = sorted(max(_highest(points) for points in of_run) for of_run in curves)
    every = [points for of_run in curves for points in of_run]
    steps = _grid(every)
    starts = [0, *steps[:-1]]
    return Filling(
        runs=len(curves),
        full_step=full_step,
        full_bytes=Band(ends[0], ends[len(ends) // 2], ends[-1]),
        steps=tuple(steps),
        low_bytes=tuple(min(_before(points, start) for points in every) for start in starts),
        high_bytes=tuple(
            max(_within(points, start, step) for points in every) for start, step in zip(starts, steps)
        ),
    )  # fmt: skip


def is_beyond(rank: RankSummary, earlier: EarlierRuns) -> bool:
    """Whether the rank's memory has been above the peaks of all earlier runs."""
    return rank.highest_allocated_bytes > earlier.highest_bytes + _margin(earlier.highest_bytes)


def bound_by_earlier_runs(rank: RankSummary, earlier: EarlierRuns) -> Optional[GrowthBound]:
    """Where the growth of this rank ends, by what earlier runs of its job did; ``None``: they tell nothing of it."""
    verdict, past = rank.verdict, earlier.filling
    onset, grown = verdict.onset_step, verdict.grown_bytes
    if past is None or verdict.state is LeakState.OK or verdict.signal is not Signal.ALLOCATED:
        return None
    if onset is None or grown is None or onset > past.full_step:
        return None
    high = past.high_at(rank.step)
    bound = GrowthBound(
        what=f"the memory of this job, as in {past.runs} earlier runs",
        kind=EARLIER_RUNS,
        items=past.runs,
        most_items=past.runs,
        step=rank.step,
        level_bytes=high,
        left_bytes=Band(*(max(end - high, 0.0) for end in past.full_bytes)),
    )
    if rank.highest_allocated_bytes > past.full_bytes.high + _margin(past.full_bytes.high):
        return bound._replace(state=BoundState.REFUTED)
    most, least = high - past.low_at(onset), past.low_at(rank.step) - past.high_at(onset)
    if grown > FASTER * most + MIN_LEVEL_BYTES or grown < SLOWER * least:
        return None
    return _fitted(bound._replace(total_bytes=grown + bound.left_bytes.high), free_bytes(verdict))


def with_earlier_runs(ranks: Sequence[RankSummary], earlier: EarlierRuns) -> tuple[RankSummary, ...]:
    """The ranks of one attempt, each with the bound that earlier runs give where it has no other."""
    return tuple(rank if rank.bound is not None else _with_bound(rank, earlier) for rank in ranks)


def _with_bound(rank: RankSummary, earlier: EarlierRuns) -> RankSummary:
    bound = bound_by_earlier_runs(rank, earlier)
    return rank if bound is None else replace(rank, bound=bound, verdict=bounded_verdict(rank.verdict, bound))


def change_words(ranks: Sequence[RankSummary], earlier: EarlierRuns) -> Optional[str]:
    """What the memory of the fullest rank is beyond, and what differs from the last earlier run, as a sentence without
    a full stop: "its peak (52.1 GiB allocated) is beyond those of 12 earlier runs (40.2 GiB at most); since the last of
    them: arguments --batch 32 → --batch 64". ``None``: it is beyond nothing."""
    rank = max(ranks, key=lambda one: one.highest_allocated_bytes)
    if not is_beyond(rank, earlier):
        return None
    beyond = (
        f"its peak ({format_bytes(rank.highest_allocated_bytes)} allocated) is beyond those of {earlier.runs} earlier "
        f"runs ({format_bytes(earlier.highest_bytes)} at most)"
    )
    identity, last = rank.identity, earlier.last
    pairs = (
        ("script", (identity.script, identity.script_sha256), (last.script, last.script_sha256)),
        ("arguments", identity.arguments, last.arguments),
        ("torch", identity.torch_version, last.torch_version),
        ("allocator settings", identity.alloc_conf, last.alloc_conf),
    )
    changed = [_difference(name, now, before) for name, now, before in pairs if now != before]
    if not changed:
        return f"{beyond}; script and arguments are those of the last run (what it imports or reads may have changed)"
    return f"{beyond}; since the last of them: {', '.join(changed)}"


def _difference(name: str, now: object, before: object) -> str:
    if not isinstance(now, str) or not isinstance(before, str):
        return f"{name} changed"
    return f"{name} {one_line(before, MAX_ARGUMENTS_CHARS)} → {one_line(now, MAX_ARGUMENTS_CHARS)}"


def _fitted(bound: GrowthBound, free: Optional[float]) -> GrowthBound:
    if free is None:
        return bound
    missing = bound.left_bytes.likely - free
    if missing > 0:
        return bound._replace(state=BoundState.TOO_LARGE, missing_bytes=int(missing))
    return bound._replace(state=BoundState.HOLDS)


def _margin(of_bytes: float) -> float:
    return max(LEVEL_SHARE * of_bytes, MIN_LEVEL_BYTES)


def _highest(points: Sequence[MemoryPoint]) -> int:
    return max(point.allocated_bytes for point in points)


def _full_step(points: Sequence[MemoryPoint]) -> int:
    """The step at which a curve came near its highest point first."""
    highest = _highest(points)
    return next(point.step for point in points if point.allocated_bytes >= highest - _margin(highest))


def _stopped(points: Sequence[MemoryPoint]) -> bool:
    full_step = _full_step(points)
    level = [point for point in points if point.step > full_step]
    return len(level) >= MIN_LEVEL_POINTS and level[-1].step - full_step >= MIN_LEVEL_STEPS_SHARE * full_step


def _grid(curves: Iterable[Sequence[MemoryPoint]]) -> list[int]:
    """Steps of the curves' points, evenly thinned out; the last one stays."""
    steps = sorted({point.step for points in curves for point in points})
    stride = -(-len(steps) // MAX_GRID_POINTS)
    return steps[::-1][::stride][::-1]


def _before(points: Sequence[MemoryPoint], step: int) -> int:
    """The memory at the beginning of what follows ``step``: 0 where the curve does not tell."""
    found = 0
    for point in points:
        if point.step > step:
            return found
        found = point.allocated_bytes
    return found


def _within(points: Sequence[MemoryPoint], after: int, until: int) -> int:
    """The highest memory at the steps between."""
    highest, began = 0, -1
    for point in points:
        if began < until and point.step > after:
            highest = max(highest, point.allocated_bytes)
        began = point.step
    return highest or points[-1].allocated_bytes
