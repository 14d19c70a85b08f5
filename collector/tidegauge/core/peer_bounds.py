"""Bounds shared by ranks that grow alike: they run the same code, so a bound of one holds for its peers.

One rank of a job is looked into, not all of a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound, bounded_verdict, free_bytes
from tidegauge.core.ids import ProcessId
from tidegauge.core.verdicts import LeakState, Signal, Verdict
from tidegauge.core.views import RankSummary

MAX_RATE_RATIO = 1.25
"""A peer that grows faster than the rank that was looked into grows by something else as well."""
BEHIND_RATIO = 1.5
"""A peer that has grown so many times less is behind. Less proves nothing: what a verdict says has grown is from the
detector's last look, and looks of two ranks may be a third of the growth apart."""


class PeerBound(NamedTuple):
    """A bound for a rank's growth, found on a peer or in earlier runs; the coordinator sends it to the rank's node."""

    process: ProcessId
    bound: GrowthBound


def with_shared_bounds(ranks: Sequence[RankSummary], stale: Sequence[bool]) -> tuple[RankSummary, ...]:
    """The ranks of one attempt of a job, each with the bound of a peer where it has none of its own. ``stale``: for
    each rank, whether its node has not reported lately; such a rank lends none."""
    if all(rank.bound is None for rank in ranks):
        return tuple(ranks)
    known = [rank for rank, is_stale in zip(ranks, stale) if not is_stale and rank.alive and _lends(rank.bound)]
    # The one that grows most: it is nearest to its end, and asks most of its peers.
    lender = max(known, key=lambda rank: rank.verdict.grown_bytes or 0, default=None)
    return tuple(_with_peers_bound(rank, lender) for rank in ranks)


def holds_for_peer(bound: GrowthBound, verdict: Verdict, left_bytes: Optional[float] = None) -> bool:
    """Whether a peer's growth, too, ends by this bound, and before its own memory does. ``left_bytes``: what it is
    still to take, where that is known better than from what it had grown when the detector last looked."""
    if verdict.state is LeakState.OK or verdict.signal is not Signal.ALLOCATED:
        return False
    free, grown_bytes, total_bytes = free_bytes(verdict), verdict.grown_bytes, bound.total_bytes
    if free is None or grown_bytes is None or total_bytes is None or grown_bytes > total_bytes + bound.margin_bytes:
        return False
    return (total_bytes - grown_bytes if left_bytes is None else left_bytes) <= free


def _lends(bound: Optional[GrowthBound]) -> bool:
    if bound is None or not bound.is_own or bound.total_bytes is None:
        return False
    return bound.explains_growth


def _with_peers_bound(rank: RankSummary, lender: Optional[RankSummary]) -> RankSummary:
    if rank.bound is not None and rank.bound.is_own:
        return rank
    left_bytes = None if lender is None else _left_bytes(rank.verdict, lender)
    if lender is None or lender.bound is None or not _grows_alike(rank.verdict, lender, left_bytes):
        return rank if rank.bound is None else replace(rank, bound=None)
    number = int(lender.identity.rank)
    own = lender.bound._replace(state=BoundState.HOLDS, missing_bytes=None, of_rank=number)
    if left_bytes is not None:  # its node holds it against what the same look found
        own = own._replace(total_bytes=(rank.verdict.grown_bytes or 0) + left_bytes)
    return replace(rank, bound=own, verdict=bounded_verdict(rank.verdict, own))


def _grows_alike(verdict: Verdict, lender: RankSummary, left_bytes: Optional[float]) -> bool:
    """The lender may have ended already: peers are full within a few steps of each other."""
    other = lender.verdict
    if lender.bound is None or not holds_for_peer(lender.bound, verdict, left_bytes):
        return False
    if verdict.bytes_per_step is None or other.bytes_per_step is None:
        return True
    return verdict.bytes_per_step.likely <= MAX_RATE_RATIO * other.bytes_per_step.likely


def _left_bytes(verdict: Verdict, lender: RankSummary) -> Optional[float]:
    """The bytes that the lender is still to take, by its present reading; a peer takes as much, whatever else it leaks.
    ``None`` for a peer that is behind, and where the lender has ended."""
    bound, others_bytes = lender.bound, lender.verdict.grown_bytes
    if bound is None or bound.total_bytes is None or others_bytes is None:
        return None
    is_behind = BEHIND_RATIO * (verdict.grown_bytes or 0) < others_bytes
    return None if is_behind else bound.total_bytes - others_bytes
