"""A bound that one rank of a job has, and its peers that grow alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from incident_watch import Watch, job
from sample_views import LEAK, MIB, rank_summary
from tidegauge.core.evidence.growth_bound import BoundState, BoundWatch, GrowthBound, bounded_verdict
from tidegauge.core.peer_bounds import holds_for_peer, with_shared_bounds
from tidegauge.core.verdicts import OK, Band, Severity, Signal
from tidegauge.core.views import RankSummary

GROWS = LEAK._replace(
    severity=Severity.CRITICAL, signal=Signal.ALLOCATED, onset_step=10, grown_bytes=400 * MIB, headroom_eaten=0.5,
    bytes_per_step=Band(4 * MIB, 4 * MIB, 4 * MIB),
)  # fmt: skip
"""Another 400 MiB are free."""
FILLS = GrowthBound(
    "`window` (deque, train.py)", "deque", 60, 150, 70, 300 * MIB, Band(360 * MIB, 360 * MIB, 360 * MIB)
)  # fmt: skip


def looked_into(**changes: Any) -> RankSummary:
    """Rank 0, of which 150 items of 4 MiB are known to be all: 600 MiB in all."""
    bound = BoundWatch(FILLS).update(step=110, allocated_bytes=460 * MIB, verdict=GROWS)
    assert bound is not None
    assert bound.total_bytes == 600 * MIB
    return rank_summary(0, verdict=bounded_verdict(GROWS, bound), bound=bound, **changes)


def peer(**changes: Any) -> RankSummary:
    return rank_summary(1, verdict=GROWS._replace(**changes))


def lent(first: RankSummary, second: RankSummary, *, stale: bool = False) -> GrowthBound | None:
    return with_shared_bounds([first, second], [stale, False])[1].bound


def test_a_peer_that_grows_alike_is_in_no_danger_either() -> None:
    ranks = with_shared_bounds([looked_into(), peer()], [False, False])
    assert ranks[1].bound is not None
    assert ranks[1].bound.holds
    assert ranks[1].verdict.severity is Severity.WARNING
    assert Watch().see(job(*ranks), for_s=300) == []


def test_a_peer_is_bounded_still_when_the_other_is_full() -> None:
    watch = BoundWatch(FILLS)
    watch.update(step=110, allocated_bytes=460 * MIB, verdict=GROWS)
    bound = watch.update(step=170, allocated_bytes=660 * MIB, verdict=OK)
    assert bound is not None
    assert bound.state is None
    full = rank_summary(0, verdict=OK, bound=bound)
    assert lent(full, peer(grown_bytes=596 * MIB, headroom_eaten=0.75)) is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"signal": Signal.RESERVED},
        {"bytes_per_step": Band(6 * MIB, 6 * MIB, 6 * MIB)},
        {"grown_bytes": 700 * MIB},
        {"headroom_eaten": 0.8},
        {"headroom_eaten": None},
    ],
    ids=["another signal", "faster", "beyond the end", "too little memory", "no limit"],
)
def test_a_peer_that_grows_otherwise_is_as_dangerous_as_before(changes: dict[str, Any]) -> None:
    one = peer(**changes)
    assert with_shared_bounds([looked_into(), one], [False, False])[1] == one


def test_shared_bound_is_not_lent_to_a_peer_that_grew_beyond_it() -> None:
    """Rank 0 is to take 200 MiB yet, and so is its peer, whatever has leaked there meanwhile."""
    ahead = {"grown_bytes": 500 * MIB, "bytes_per_step": Band(4.8 * MIB, 4.8 * MIB, 4.8 * MIB)}
    assert lent(looked_into(), peer(**ahead, headroom_eaten=0.7)) is not None
    assert lent(looked_into(), peer(**ahead, headroom_eaten=0.72)) is None


def test_a_peer_that_the_detector_looked_at_long_ago_is_bounded_still() -> None:
    """It has grown as much as rank 0 by now, 400 MiB, of which its verdict says 300: 210 MiB are free, and enough."""
    behind = peer(grown_bytes=300 * MIB, headroom_eaten=300 / 510)
    bound = lent(looked_into(), behind)
    assert bound is not None
    assert holds_for_peer(bound, behind.verdict), "on its node, too"


def test_a_peer_that_is_far_behind_needs_as_much_memory_as_it_is_to_take() -> None:
    assert lent(looked_into(), peer(grown_bytes=100 * MIB, headroom_eaten=100 / 400)) is None
    assert lent(looked_into(), peer(grown_bytes=100 * MIB, headroom_eaten=100 / 700)) is not None


def test_a_node_that_applied_it_already_is_judged_anew_each_time() -> None:
    ranks = with_shared_bounds([looked_into(), peer()], [False, False])
    assert with_shared_bounds(ranks, [False, False]) == ranks
    assert lent(looked_into(alive=False), ranks[1]) is None
    outgrown = replace(ranks[1], verdict=GROWS._replace(grown_bytes=700 * MIB))
    assert lent(looked_into(), outgrown) is None


def test_shared_bound_is_not_lent_on_by_its_borrower() -> None:
    borrower = with_shared_bounds([looked_into(), peer()], [False, False])[1]
    assert borrower.bound is not None
    assert borrower.bound.of_rank == 0
    assert lent(borrower, rank_summary(2, verdict=GROWS)) is None


def test_shared_bound_is_lent_only_by_a_live_fresh_rank_with_an_unrefuted_bound() -> None:
    first = looked_into()
    assert first.bound is not None
    assert lent(first, peer(), stale=True) is None
    assert lent(looked_into(alive=False), peer()) is None
    for state in (BoundState.REFUTED, BoundState.UNRELATED):
        other = rank_summary(0, verdict=GROWS, bound=first.bound._replace(state=state))
        assert lent(other, peer()) is None


def test_a_bound_of_its_own_stays() -> None:
    own = FILLS._replace(what="`cache`", state=BoundState.TOO_LARGE)
    second = rank_summary(1, verdict=GROWS, bound=own)
    assert lent(looked_into(), second) == own
