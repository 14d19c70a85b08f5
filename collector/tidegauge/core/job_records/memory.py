"""What stays of a job's memory: the peaks of its ranks, and how the memory of the fullest ones went. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidegauge.core.job_records.record import RankPeak
from tidegauge.core.memory_history import MemoryPoint

MAX_PEAKS = 1024
"""Ranks of a job whose peaks are kept, the fullest."""
MAX_JOB_CURVES = 4
"""Ranks of a job whose points are kept, the fullest: 2 KB each when packed."""
MAX_INCIDENT_CURVES = 16
"""Ranks of an incident whose points are kept, the ones to look at first."""


class RankMemory(NamedTuple):
    """How the memory of one rank went: ``memory_history.BUCKETS`` points at most, the oldest first."""

    rank: int
    points: tuple[MemoryPoint, ...]


class JobMemory(NamedTuple):
    """What stays beside a ``JobRecord``, by its key and start."""

    peaks: tuple[RankPeak, ...] = ()
    """The fullest rank first."""
    curves: tuple[RankMemory, ...] = ()
