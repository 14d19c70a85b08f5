"""Ranks the settings that were tried, and recommends one. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegauge.analysis.whatif.results import Trial
from tidegauge.core.allocator.settings import MIB

SAME_SHARE, SAME_BYTES = 0.01, 20 * MIB
"""Peaks that differ by no more than 1 %, or by one large segment, are the same to a person: the simpler setting is
taken. The model itself promises 1 % where addresses decide."""
MANY_MORE_CALLS = 3
"""Times as many calls to the device as today: a setting with a price."""

Rank = tuple[int, int, int, int, int]


def rank(trial: Trial) -> Rank:
    """Lower is better: no out-of-memory first, then no retries, then the peak of reserved memory; of equal ones fewer
    changes, then fewer calls to the device.
    """
    replay = trial.replay
    return (replay.ooms, replay.alloc_retries, replay.peak_reserved_bytes, len(trial.changes), trial.device_calls)


def best_first(trials: Iterable[Trial]) -> list[Trial]:
    return sorted(trials, key=rank)


def recommended(ranked: Sequence[Trial], today: Trial) -> Trial:
    """The setting to recommend: of those as good as the best, one without a price, then with the fewest changes."""
    best = ranked[0]
    as_good = [trial for trial in ranked if _fate(trial) == _fate(best) and not _clearly_more(trial, best)]
    return min(as_good, key=lambda trial: (is_dear(trial, today), len(trial.changes), rank(trial)))


def is_dear(trial: Trial, today: Trial) -> bool:
    """Whether it calls the device for memory much more often: each such call can wait for the GPU."""
    return trial.device_calls > MANY_MORE_CALLS * today.device_calls


def helps(trial: Trial, today: Trial) -> bool:
    """Whether it is better than today's in what counts: an equal peak with fewer calls is no reason to change."""
    return rank(trial)[:3] < rank(today)[:3]


def harms(trial: Trial, today: Trial) -> bool:
    """Whether it is clearly worse than today's."""
    if _fate(trial) != _fate(today):
        return _fate(trial) > _fate(today)
    return _clearly_more(trial, today)


def _fate(trial: Trial) -> tuple[int, int]:
    return trial.replay.ooms, trial.replay.alloc_retries


def _clearly_more(trial: Trial, other: Trial) -> bool:
    ours, theirs = trial.replay.peak_reserved_bytes, other.replay.peak_reserved_bytes
    return ours - theirs > max(SAME_SHARE * theirs, SAME_BYTES)
