"""What earlier runs of the same job tell of a running one: where its memory stops, and whether it goes beyond. Pure.

Runs are of the same job if user, namespace, job name, script and world size are the same. Growth of a rank ends by them
only if the script's contents were the same too, and this rank (any rank, where all were alike) filled and then stayed
level in at least ``MIN_EARLIER_RUNS`` of them as it has grown now: at the same steps, not faster, not much slower, not
later, and not above. A leak that begins anew is one of these before long.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
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
LEVEL_QUANTILE, LEVEL_POINTS_SHARE = 0.9, 0.8
"""The level is this quantile of the later half of the points, and so large a share of those since it was full is not
above: single ones may be, such as those of an evaluation at the end."""
ALIKE_SHARE = 0.1
"""Ranks whose peaks differ by no more are alike: what one of them did holds for all."""
FASTER, SLOWER = 1.25, 0.7
"""Growth between the same two steps, as a multiple of what it was in an earlier run, is the same growth up to these."""
MAX_CURVE_POINTS = 64
MAX_TOLD_CHARS = 60
"""Of arguments and the like, from where they differ."""


class FilledRank(NamedTuple):
    """Allocated memory of one rank of a run that filled and stopped: ``bytes_held`` is the highest at the steps up to
    ``steps`` and after the one before."""

    full_step: int
    full_bytes: int
    """What it held at most, with the memory of a step."""
    steps: tuple[int, ...]
    bytes_held: tuple[int, ...]
    seen_to_fill: bool = True
    """Whether it was full after the first point of its curve; else nobody knows how it came to be full."""

    def high_at(self, step: int) -> int:
        """What it held at this step, at most."""
        return self.bytes_held[min(bisect_left(self.steps, step), len(self.steps) - 1)]

    def low_at(self, step: int) -> int:
        """What it held at this step, at least; 0 where the curve does not tell."""
        place = min(bisect_left(self.steps, step), len(self.steps) - 1)
        return self.bytes_held[place - 1] if place else 0


class FilledRun(NamedTuple):
    """A run whose memory filled and stopped, by rank."""

    ranks: Mapping[int, FilledRank]
    alike: bool
    """Whether any of them stands for any rank."""

    def rank(self, number: int) -> Optional[FilledRank]:
        found = self.ranks.get(number)
        return next(iter(self.ranks.values())) if found is None and self.alike else found


class EarlierRuns(NamedTuple):
    """The newest runs of the same job, ``MIN_EARLIER_RUNS`` at least."""

    runs: int
    last: JobRecord
    highest_bytes: int
    """The highest peak of allocated memory of a rank in any of them."""
    filled: tuple[FilledRun, ...] = ()
    """Those of the same script that show that growth ends."""


def is_earlier_run(run: JobRecord, of: JobRecord) -> bool:
    """Whether ``run`` ended, is of the same job, and came far enough to tell anything."""
    has_ended = run.end is not None and run.started_unix_s < of.started_unix_s
    return has_ended and run.steps > 0 and _job_of(run) == _job_of(of)


def has_same_script(run: JobRecord, of: JobRecord) -> bool:
    return of.script_sha256 is not None and run.script_sha256 == of.script_sha256


def _job_of(run: JobRecord) -> tuple[object, ...]:
    return run.job.uid, run.namespace, run.job_name, run.script, run.world_size


def earlier_runs(runs: Sequence[tuple[JobRecord, JobMemory]]) -> Optional[EarlierRuns]:
    """``runs``: all are earlier runs of one job, the newest first."""
    runs = runs[:MAX_EARLIER_RUNS]
    if len(runs) < MIN_EARLIER_RUNS:
        return None
    return EarlierRuns(len(runs), runs[0][0], max(_highest_allocated(*run) for run in runs))


def filled_runs(runs: Sequence[tuple[JobRecord, JobMemory]]) -> tuple[FilledRun, ...]:
    """Those of these runs of one script whose memory filled and stopped. None if one ran out of memory, was ended by
    the policy, or went on growing beyond them."""
    filled: list[FilledRun] = []
    unstopped_bytes = 0
    for run, memory in runs:
        if run.end is JobEnd.OOM or run.ooms or end_by_actions(run) is not None:
            return ()
        ranks = {rank: _filled(points) for rank, points in memory.curves}
        stopped = {rank: found for rank, found in ranks.items() if found is not None}
        if stopped:
            filled.append(FilledRun(stopped, len(stopped) == len(ranks) and _are_alike(memory)))
        else:
            unstopped_bytes = max(unstopped_bytes, _highest_allocated(run, memory))
    full_bytes = max((rank.full_bytes for run in filled for rank in run.ranks.values()), default=0)
    return () if unstopped_bytes > full_bytes + _margin(full_bytes) else tuple(filled)


def _highest_allocated(run: JobRecord, memory: JobMemory) -> int:
    return max(peak.allocated_bytes for peak in (run.fullest, *memory.peaks))


def _are_alike(memory: JobMemory) -> bool:
    peaks = [peak.allocated_bytes for peak in memory.peaks]
    return bool(peaks) and min(peaks) >= (1 - ALIKE_SHARE) * max(peaks)


def _filled(points: Sequence[MemoryPoint]) -> Optional[FilledRank]:
    """``None`` for a rank that did not stop growing, as far as its curve tells."""
    if not points or points[-1].step <= 0:
        return None
    late = sorted(point.allocated_bytes for point in points if 2 * point.step >= points[-1].step)
    level_bytes = late[int(LEVEL_QUANTILE * (len(late) - 1))]
    full = next(point for point in points if point.allocated_bytes >= level_bytes - _margin(level_bytes))
    after = [point for point in points if point.step > full.step]
    level = [point for point in after if point.allocated_bytes <= level_bytes + _margin(level_bytes)]
    if len(level) < max(MIN_LEVEL_POINTS, LEVEL_POINTS_SHARE * len(after)):
        return None
    if level[-1].step - full.step < MIN_LEVEL_STEPS_SHARE * full.step:
        return None
    stride = -(-len(points) // MAX_CURVE_POINTS)
    parts = [points[at : at + stride] for at in range(0, len(points), stride)]
    return FilledRank(
        full_step=full.step,
        full_bytes=max(point.allocated_bytes for point in points),
        seen_to_fill=full is not points[0],
        steps=tuple(part[-1].step for part in parts),
        bytes_held=tuple(max(point.allocated_bytes for point in part) for part in parts),
    )


def with_earlier_runs(ranks: Sequence[RankSummary], earlier: EarlierRuns) -> tuple[RankSummary, ...]:
    """The ranks of one attempt, each with the bound that earlier runs give where it has no other."""
    return tuple(rank if rank.bound is not None else _with_bound(rank, earlier) for rank in ranks)


def _with_bound(rank: RankSummary, earlier: EarlierRuns) -> RankSummary:
    bound = bound_by_earlier_runs(rank, earlier)
    return rank if bound is None else replace(rank, bound=bound, verdict=bounded_verdict(rank.verdict, bound))


def bound_by_earlier_runs(rank: RankSummary, earlier: EarlierRuns) -> Optional[GrowthBound]:
    """Where the growth of this rank ends, by what it did in earlier runs; ``None``: they tell nothing of it."""
    verdict = rank.verdict
    if not earlier.filled or verdict.state is LeakState.OK or verdict.signal is not Signal.ALLOCATED:
        return None
    past = [run.rank(int(rank.identity.rank)) for run in earlier.filled]
    alike = [one for one in past if one is not None and _has_grown_as(rank, one)]
    if len(alike) < MIN_EARLIER_RUNS:
        return None
    ends = sorted(one.full_bytes for one in alike)
    high, margin = max(one.high_at(rank.step) for one in alike), _margin(ends[-1])
    if rank.highest_allocated_bytes > ends[-1] + margin:
        return None
    bound = GrowthBound(
        what=f"the memory of this job, as in {len(alike)} earlier runs",
        kind=EARLIER_RUNS,
        items=len(alike),
        most_items=len(alike),
        step=rank.step,
        level_bytes=high,
        left_bytes=Band(*(max(float(end - high), 0.0) for end in (ends[0], ends[len(ends) // 2], ends[-1]))),
    )
    free = free_bytes(verdict)
    if free is None:
        return bound
    left = max(one.full_bytes - one.high_at(rank.step) for one in alike)
    if left > free:
        return bound._replace(state=BoundState.TOO_LARGE, missing_bytes=int(left - free))
    # Growth beyond the end is told once it is beyond the margin, and then needs room to be told in.
    return bound._replace(state=BoundState.HOLDS) if left + 2 * margin <= free else None


def _has_grown_as(rank: RankSummary, past: FilledRank) -> bool:
    onset, grown = rank.verdict.onset_step, rank.verdict.grown_bytes
    if onset is None or grown is None or onset > past.full_step:
        return False
    if not past.seen_to_fill and rank.step > FASTER * past.full_step:
        return False
    most = past.high_at(rank.step) - past.low_at(onset)
    least = past.low_at(rank.step) - past.high_at(onset)
    is_as_high = rank.highest_allocated_bytes >= SLOWER * past.low_at(rank.step)
    return is_as_high and SLOWER * least <= grown <= FASTER * most + MIN_LEVEL_BYTES


def change_words(ranks: Sequence[RankSummary], earlier: EarlierRuns) -> Optional[str]:
    """What the memory of the fullest rank is beyond, and what differs from the last earlier run, as a sentence without
    a full stop: "its peak (52.1 GiB allocated) is beyond those of 12 earlier runs (40.2 GiB at most); since the last of
    them: arguments --batch 32 → --batch 64". ``None``: it is beyond nothing."""
    rank = max(ranks, key=lambda one: one.highest_allocated_bytes)
    peak_bytes = rank.highest_allocated_bytes
    if peak_bytes <= earlier.highest_bytes + _margin(earlier.highest_bytes):
        return None
    beyond = (
        f"its peak ({format_bytes(peak_bytes)} allocated) is beyond those of {earlier.runs} earlier runs "
        f"({format_bytes(earlier.highest_bytes)} at most)"
    )
    identity, last = rank.identity, earlier.last
    pairs = (
        ("arguments", identity.arguments, last.arguments),
        ("torch", identity.torch_version, last.torch_version),
        ("allocator settings", identity.alloc_conf, last.alloc_conf),
    )
    changed = [
        _difference(name, now, before)
        for name, now, before in pairs
        if now is not None and before is not None and now != before
    ]
    if None not in (hashes := (identity.script_sha256, last.script_sha256)) and hashes[0] != hashes[1]:
        changed.insert(0, "script changed")
    if changed:
        return f"{beyond}; since the last of them: {', '.join(changed)}"
    if None in (*hashes, identity.arguments, last.arguments):
        return beyond
    return f"{beyond}; script and arguments are those of the last run (what it imports or reads may have changed)"


def _difference(name: str, now: str, before: str) -> str:
    """From the word on in which they differ."""
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(now, before))))
    start = now.rfind(" ", 0, same) + 1 if max(len(now), len(before)) > MAX_TOLD_CHARS else 0
    old, new = (one_line(text[start:], MAX_TOLD_CHARS) or "none" for text in (before, now))
    return f"{name} {'… ' * (start > 0)}{old} → {new}"


def _margin(of_bytes: float) -> float:
    return max(LEVEL_SHARE * of_bytes, MIN_LEVEL_BYTES)
