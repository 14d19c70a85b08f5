"""Allocator settings worth trying on a trace, written together with the owner's own settings.

A key that the trace's torch does not know is never proposed: it would break the job's start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, compress
from typing import Optional

from tidegauge.core.alloc_conf import format_alloc_conf, parse_alloc_conf
from tidegauge.core.allocator.settings import MIB, AllocatorSettings
from tidegauge.core.allocator.trace import Action, Trace
from tidegauge.core.torch_version import torch_at_least

Changes = Mapping[str, Optional[str]]
"""New values by key; ``None`` takes the key out, so that torch's default is in force again."""

EXPANDABLE = "expandable_segments"
MAX_SPLIT = "max_split_size_mb"
NON_SPLIT_ROUNDING = "max_non_split_rounding_mb"
ROUNDUP = "roundup_power2_divisions"
GC = "garbage_collection_threshold"
LARGE_SEGMENT = "large_segment_size_mb"

PLACEMENT_KEYS = (EXPANDABLE, MAX_SPLIT, NON_SPLIT_ROUNDING, ROUNDUP, GC, LARGE_SEGMENT)
"""Those that decide where a block goes. Of all others none is ever touched."""
SINCE = {NON_SPLIT_ROUNDING: (2, 6), LARGE_SEGMENT: (2, 11)}
"""The first torch that knows the key; the others are as old as 2.0."""

POPULAR: tuple[tuple[str, str], ...] = (
    (EXPANDABLE, "True"),
    *((MAX_SPLIT, str(size_mb)) for size_mb in (32, 64, 128, 256, 512)),
    *((GC, threshold) for threshold in ("0.6", "0.8")),
    *((ROUNDUP, divisions) for divisions in ("2", "4", "8")),
)
"""What forums and out-of-memory messages advise, whatever the job."""

_SPLIT_SIZES_MB = (20, 32, 64, 128, 256, 512, 1024)
_GAPS_TRIED = 2
_LARGE_SEGMENTS_MB = ("12", "64")
"""20 is the default; torch wants more than 10."""
_IDLE_BESIDE_EXPANDABLE = {MAX_SPLIT, NON_SPLIT_ROUNDING, GC}
"""Garbage collection passes expandable segments by. They are always split, so that of a split size only the harm is
left: it keeps requests from the larger free blocks."""
_MAX_COMBINED = 3
"""Keys changed at once: nobody can reason about more."""


@dataclass(frozen=True)
class Candidates:
    """The changes to the allocator settings of a trace that are worth trying."""

    trace: Trace
    torch_version: Optional[str]
    """``None`` where only the keys that every torch knows may be proposed."""
    cap_bytes: Optional[int]

    def single(self) -> list[Changes]:
        """Changes of one key: the owner's keys taken out, then the values that may matter to this trace. And expandable
        segments with nothing else.
        """
        today = parse_alloc_conf(self.trace.alloc_conf)
        own = [key for key in PLACEMENT_KEYS if key in today]
        changes: list[Changes] = [{key: None} for key in own]
        if len(own) > 1:
            changes.append(dict.fromkeys(own))
        changes.append({EXPANDABLE: "True"})
        changes.append({**dict.fromkeys(own), EXPANDABLE: "True"})
        changes += [{ROUNDUP: divisions} for divisions in ("2", "4", "8", "16")]
        changes += [{MAX_SPLIT: str(size_mb)} for size_mb in split_sizes_mb(self.trace)]
        if self.cap_bytes is not None:
            changes += [{GC: threshold} for threshold in ("0.6", "0.8")]
        changes += [{LARGE_SEGMENT: size_mb} for size_mb in _LARGE_SEGMENTS_MB]
        return [change for change in changes if self._is_known(change)]

    def combined(self, helpful: Sequence[Changes], others: Sequence[Changes]) -> list[Changes]:
        """Changes of several keys: the best of each key in ``helpful``, the single changes that lower the peak. And
        expandable segments with the best of each key, as rounding and segment size act differently there. ``others``
        are the single changes that did not help. Both are given best first.
        """
        best = _best_of_each_key(helpful)
        combined = [_union(some) for count in range(2, _MAX_COMBINED + 1) for some in combinations(best, count)]
        combined += [{EXPANDABLE: "True", **change} for change in _best_of_each_key([*helpful, *others])]
        split = next((change[MAX_SPLIT] for change in best if change.get(MAX_SPLIT)), None)
        if split is not None:
            combined.append({MAX_SPLIT: split, NON_SPLIT_ROUNDING: split})
        return [
            change for change in combined if len(change) > 1 and not _partly_idle(change) and self._is_known(change)
        ]

    def conf(self, changes: Changes) -> str:
        """The trace's settings with ``changes``, every other key as its owner wrote it."""
        settings = {**parse_alloc_conf(self.trace.alloc_conf), **changes}
        return format_alloc_conf({key: value for key, value in settings.items() if value is not None})

    def _is_known(self, changes: Changes) -> bool:
        """Whether this torch knows every key; of an unknown torch only what all of them know is expected."""
        version = self.torch_version
        added = [SINCE[key] for key, value in changes.items() if value is not None and key in SINCE]
        return all(version is not None and torch_at_least(version, *since) for since in added)


def split_sizes_mb(trace: Trace) -> list[int]:
    """Values of ``max_split_size_mb``, MiB: the usual ones below the largest request, and those that cut the trace's
    own sizes at their widest gaps, so that the buffers above a gap are kept whole for each other.
    """
    requested = set(compress(trace.size_bytes, map(Action.ALLOC.__eq__, trace.action)))
    large = sorted(size for size in requested if size > _SPLIT_SIZES_MB[0] * MIB)
    if not large:
        return []
    usual = {size_mb for size_mb in _SPLIT_SIZES_MB if size_mb * MIB <= large[-1]}
    gaps = sorted(zip(large, large[1:]), key=lambda gap: gap[1] / gap[0], reverse=True)
    own = {above // MIB for below, above in gaps[:_GAPS_TRIED] if above // MIB * MIB > below}
    return sorted(usual | own)


def in_effect(settings: AllocatorSettings, *, cap_bytes: Optional[int]) -> AllocatorSettings:
    """``settings`` without what has no effect: two that are equal then need one replay."""
    if cap_bytes is None or settings.expandable_segments:
        settings = replace(settings, garbage_collection_threshold=0.0)
    if settings.max_split_bytes is None:
        settings = replace(settings, max_non_split_rounding_bytes=None)
    return settings


def _best_of_each_key(changes: Iterable[Changes]) -> list[Changes]:
    found: dict[str, Changes] = {}
    for change in changes:
        if len(change) == 1:
            found.setdefault(next(iter(change)), change)
    return list(found.values())


def _union(changes: Iterable[Changes]) -> Changes:
    return {key: value for change in changes for key, value in change.items()}


def _partly_idle(change: Changes) -> bool:
    return change.get(EXPANDABLE) == "True" and any(change.get(key) for key in _IDLE_BESIDE_EXPANDABLE)
