"""A rank's memory over its life in a bounded number of points: what sparklines and forecast plots are drawn from."""

from __future__ import annotations

from typing import NamedTuple, Optional


class MemoryPoint(NamedTuple):
    """A stretch of time in the life of one rank: the highest figures in it, and when it ended."""

    at_unix_s: float
    step: int
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: Optional[int]
