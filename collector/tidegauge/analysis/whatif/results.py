"""Results of the settings tried on a trace, in bytes, and their order from best to worst."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.analysis.whatif.candidates import Changes
from tidegauge.core.allocator.results import Replay
from tidegauge.core.allocator.settings import MIB, AllocatorSettings
from tidegauge.core.text import one_line


class SearchLimits(NamedTuple):
    """Limits on reserved memory in bytes; ``None``: no limit, or an unknown one."""

    cap_bytes: Optional[int] = None
    """As ``set_per_process_memory_fraction`` sets it."""
    capacity_bytes: Optional[int] = None
    """What ``cudaMalloc`` can give to this process in all."""
    below_bytes: Optional[int] = None
    """Where the cap was concluded from failed requests: it was ``cap_bytes`` at least, and below this."""
    is_own: bool = True
    """Whether the job itself runs under this cap; otherwise it was only asked about."""

    @property
    def lowest_bytes(self) -> Optional[int]:
        return self.capacity_bytes if self.cap_bytes is None else self.cap_bytes


class ReplayConfidence(str, Enum):
    """The trustworthiness of a predicted figure."""

    EXACT = "exact"
    """Nothing in the trace leaves a choice open."""
    CLOSE = "close"
    """Something that no trace says can move it a little."""
    ROUGH = "rough"
    """It rests on a guess: see the reasons."""


@dataclass(frozen=True)
class Trial:
    """The replay of a trace under one setting."""

    alloc_conf: str
    """The whole text for ``PYTORCH_ALLOC_CONF``; empty: torch's defaults."""
    changes: Changes
    """From today's; empty for today's own."""
    settings: AllocatorSettings
    replay: Replay
    confidence: ReplayConfidence
    doubts: tuple[str, ...]
    """Why the confidence is not exact, in words."""
    needs_bytes: Optional[int] = None
    """The smallest cap that it was seen to survive; ``None`` where that was not looked for."""

    @property
    def today(self) -> bool:
        """Whether this is the setting that the trace was recorded under."""
        return not self.changes

    @property
    def waste_bytes(self) -> int:
        """Reserved and not allocated, when reserved memory was at its peak."""
        return self.replay.peak_reserved_bytes - self.replay.allocated_at_peak_reserved_bytes

    @property
    def failing_request_bytes(self) -> Optional[int]:
        """The first request that ran out of memory, rounded as the allocator rounds it; ``None``: none did."""
        return self.replay.failed[0].rounded_bytes if self.replay.failed else None

    @property
    def largest_free_bytes(self) -> Optional[int]:
        """The largest free block that this request could have used, had it been large enough."""
        return self.replay.failed[0].largest_free_bytes if self.replay.failed else None

    @property
    def device_calls(self) -> int:
        """``cudaMalloc`` and ``cudaFree`` (with expandable segments: map and unmap), over the whole trace."""
        return self.replay.device_allocs + self.replay.device_frees


@dataclass(frozen=True)
class WhatIf:
    """The results of all settings tried on one trace."""

    trials: tuple[Trial, ...]
    """Best first."""
    today: Trial
    """As the trace was recorded, or under the cap that was asked for."""
    recommended: Trial
    """The simplest within 1 % of the best; today's where that is one of them."""
    recorded: Replay
    """The trace under its own settings and cap: whether the model gives every recorded address back."""
    needed_bytes: int
    """Peak of allocated memory under today's settings with nothing to limit it: no setting gets below it."""
    alloc_conf: str
    """Today's."""
    torch_version: Optional[str]
    limits: SearchLimits
    """That were applied."""
    steps: Optional[int]
    """Training steps in the trace, where it marks them."""
    died: bool
    """Whether the recording itself ran out of memory: what the job would have done next is not in it."""


def titled(alloc_conf: str) -> str:
    """Settings as a person reads them; what a recording says in them may be anything."""
    return one_line(alloc_conf) or "torch's defaults"


SAME_SHARE, SAME_BYTES = 0.01, 20 * MIB
"""Peaks that differ by no more than 1 %, or by one large segment, are the same to a person: the simpler setting is
taken. The model itself promises 1 % where addresses decide."""
MANY_MORE_CALLS = 3
"""Times as many calls to the device as today: a setting with a price."""


def rank(trial: Trial) -> tuple[int, int, int, int, int]:
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
    """Whether it calls the device for memory much more often than today's: each such call can wait for the GPU."""
    return trial.device_calls > MANY_MORE_CALLS * today.device_calls


def helps(trial: Trial, today: Trial) -> bool:
    """Whether it is better in failures, retries or peak: an equal peak with fewer calls is no reason to change."""
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
