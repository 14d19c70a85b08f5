"""Ranks of a job that grow alike run the same code: what bounds the growth of one bounds that of its peers.

One rank of a job is looked into, not all of a thousand. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from tidegauge.core.growth_bound import BoundState, GrowthBound, bounded_verdict, free_bytes
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge.core.views import RankSummary

MAX_RATE_RATIO = 1.25
"""A peer that grows faster than the rank that was looked into grows by something else as well."""


def with_shared_bounds(ranks: Sequence[RankSummary], stale: Sequence[bool]) -> tuple[RankSummary, ...]:
    """The ranks of one attempt of a job, each with the bound of a peer where it has none of its own. ``stale``: of
    which of them nothing was heard lately; these lend none."""
    known = [rank for rank, is_stale in zip(ranks, stale) if not is_stale and rank.alive and _lends(rank.bound)]
    if not known:
        return tuple(ranks)
    # The one that grows most: it is nearest to its end, and asks most of its peers.
    lender = max(known, key=lambda rank: rank.verdict.grown_bytes or 0)
    return tuple(_with_peers_bound(rank, lender) for rank in ranks)


def _lends(bound: Optional[GrowthBound]) -> bool:
    return bound is not None and bound.state is not BoundState.REFUTED and bound.total_bytes is not None


def _with_peers_bound(rank: RankSummary, lender: RankSummary) -> RankSummary:
    verdict, bound = rank.verdict, lender.bound
    if rank.bound is not None or bound is None or not _grows_alike(verdict, lender.verdict):
        return rank
    free, grown_bytes, total_bytes = free_bytes(verdict), verdict.grown_bytes, bound.total_bytes
    if free is None or grown_bytes is None or total_bytes is None:
        return rank
    most = total_bytes + bound.margin_bytes
    if grown_bytes > most or most - grown_bytes > free:
        return rank
    own = bound._replace(state=BoundState.HOLDS, missing_bytes=None)
    return replace(rank, bound=own, verdict=bounded_verdict(verdict, own))


def _grows_alike(verdict: Verdict, other: Verdict) -> bool:
    """``other`` may have ended already: peers are full within a few steps of each other."""
    if verdict.state is LeakState.OK or verdict.signal is not Signal.ALLOCATED:
        return False
    if verdict.bytes_per_step is None or other.bytes_per_step is None:
        return True
    return verdict.bytes_per_step.likely <= MAX_RATE_RATIO * other.bytes_per_step.likely
