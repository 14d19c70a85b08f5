"""Which ranks are asked for a memory profile, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from sample_views import GIB, rank_view
from tidegauge.core.ids import GlobalRank, ProcessId
from tidegauge.core.profile.rank_profile import PROFILE_PEAK_ROSE, PROFILE_WARMED_UP
from tidegauge.core.profile_policy import DEFAULT_RULES, ProfilePolicy, RankToProfile
from tidegauge.core.verdicts import LeakState, Verdict
from tidegauge.core.views import RankView

STEADY_S, STEADY_STEPS = DEFAULT_RULES.steady_s, DEFAULT_RULES.steady_steps
AGAIN_S, REFUSED_S = DEFAULT_RULES.again_s, DEFAULT_RULES.refused_again_s


def view(rank: int = 0, *, world_size: int = 2, peak: float = 10.0, steps: int = 100, level: str = "auto") -> RankView:
    base = rank_view()
    who = base.identity._replace(rank=GlobalRank(rank), world_size=world_size, profile=level)
    peak_bytes = int(peak * GIB)
    return replace(
        base, identity=who, process=ProcessId(1000 + rank, 77), steps=steps, allocated_bytes=peak_bytes // 2,
        allocated_peak_bytes=peak_bytes,
    )  # fmt: skip


class Site:
    """A policy past the warm-up of ranks, and what it wanted last."""

    def __init__(self, *views: RankView) -> None:
        self.policy = ProfilePolicy()
        self.profiled: dict[ProcessId, int] = {}
        self.now_s = 1000.0
        self.look(*(replace(one, steps=one.steps - STEADY_STEPS) for one in views))

    def look(self, *views: RankView, after_s: float = 0.0) -> Sequence[RankToProfile]:
        self.now_s += after_s
        return self.policy.wanted(views, self.profiled, self.now_s)

    def ranks(self, *views: RankView, after_s: float = 0.0) -> Mapping[int, str]:
        return {int(view.identity.rank): reason for view, reason in self.look(*views, after_s=after_s)}


def test_a_rank_past_its_warm_up_is_asked() -> None:
    site = Site(view())
    assert site.ranks(view(), after_s=STEADY_S - 0.1) == {}
    assert site.ranks(view(), after_s=0.1) == {0: PROFILE_WARMED_UP}


def test_a_rank_with_few_steps_is_not_past_its_warm_up() -> None:
    site = Site(view())
    assert site.ranks(view(steps=99), after_s=3600.0) == {}


def test_a_peak_that_rises_begins_the_warm_up_anew() -> None:
    site = Site(view())
    assert site.ranks(view(peak=12), after_s=STEADY_S) == {}
    assert site.ranks(view(peak=12, steps=110), after_s=STEADY_S) == {}
    assert site.ranks(view(peak=12, steps=120), after_s=1.0) == {0: PROFILE_WARMED_UP}


@pytest.mark.parametrize("level", ["stats", "trace", "dormant"])
def test_other_levels_are_left_alone(level: str) -> None:
    site = Site(view(level=level))
    assert site.ranks(view(level=level), after_s=STEADY_S) == {}


@pytest.mark.parametrize("state", [LeakState.SUSPECTED, LeakState.LEAK])
def test_evidence_comes_first(state: LeakState) -> None:
    site, suspected = Site(view()), replace(view(), verdict=Verdict(state))
    assert site.ranks(suspected, after_s=STEADY_S) == {}
    assert site.ranks(view()) == {0: PROFILE_WARMED_UP}


def test_a_rank_that_gives_evidence_is_not_asked_before_that_is_over() -> None:
    site = Site(view())
    site.policy.gives_evidence(view().process, site.now_s + 200.0)
    assert site.ranks(view(), after_s=199.0) == {}
    assert site.ranks(view(), after_s=1.0) == {0: PROFILE_WARMED_UP}


def test_a_rank_is_profiled_once_and_again_when_its_peak_rose_by_a_tenth() -> None:
    site = Site(view())
    site.look(view(), after_s=STEADY_S)
    site.policy.asked(view().process, site.now_s)
    site.policy.done(view().process, site.now_s)
    site.profiled[view().process] = 10 * GIB
    assert site.ranks(view(steps=9000), after_s=86_400.0) == {}
    assert site.ranks(view(peak=10.9, steps=9100), after_s=86_400.0) == {}
    assert site.ranks(view(peak=11.2, steps=9200), after_s=86_400.0) == {}, "a warm-up of the new peak"
    assert site.ranks(view(peak=11.2, steps=9300), after_s=STEADY_S) == {0: PROFILE_PEAK_ROSE}


def test_a_peak_that_rises_all_the_time_is_profiled_at_intervals() -> None:
    site = Site(view())
    site.profiled[view().process] = 5 * GIB
    site.policy.done(view().process, site.now_s)
    assert site.ranks(view(), after_s=AGAIN_S - 1.0) == {}
    assert site.ranks(view(), after_s=1.0) == {0: PROFILE_PEAK_ROSE}


def test_a_rank_that_was_asked_has_time_to_answer() -> None:
    site = Site(view())
    site.look(view(), after_s=STEADY_S)
    site.policy.asked(view().process, site.now_s)
    assert site.ranks(view(), after_s=300.0) == {}
    assert site.ranks(view(), after_s=AGAIN_S) == {0: PROFILE_WARMED_UP}


def test_a_busy_rank_is_asked_later_and_less_often_each_time() -> None:
    site = Site(view())
    for times in (1, 2, 4):
        site.look(view(), after_s=STEADY_S)
        site.policy.asked(view().process, site.now_s)
        site.policy.refused(view().process, site.now_s, for_good=False)
        assert site.ranks(view(), after_s=times * REFUSED_S - 1.0) == {}
        assert site.ranks(view(), after_s=1.0) == {0: PROFILE_WARMED_UP}


def test_a_rank_that_cannot_record_is_not_asked_again() -> None:
    site = Site(view())
    site.policy.refused(view().process, site.now_s, for_good=True)
    assert site.ranks(view(), after_s=86_400.0) == {}


def test_all_ranks_of_a_small_job_are_asked() -> None:
    ranks = [view(rank, world_size=8, peak=10 + rank) for rank in range(8)]
    assert list(Site(*ranks).ranks(*ranks, after_s=STEADY_S)) == list(range(8))


def test_a_rank_of_a_small_job_waits_for_no_other() -> None:
    ranks = [view(rank, world_size=8) for rank in range(2)]
    site = Site(*ranks)
    assert list(site.ranks(ranks[0], replace(ranks[1], steps=90), after_s=STEADY_S)) == [0]


def test_of_a_large_job_the_fullest_and_the_emptiest_of_the_node_are_asked() -> None:
    ranks = [view(rank, world_size=16, peak=peak) for rank, peak in enumerate((10, 12, 9.5, 12, 9.5, 10, 10, 10))]
    assert sorted(Site(*ranks).ranks(*ranks, after_s=STEADY_S)) == [1, 4]


def test_a_large_job_is_asked_once_all_its_ranks_on_the_node_are_past_their_warm_up() -> None:
    """Before, it is not known which is the fullest."""
    ranks = [view(rank, world_size=16) for rank in range(2)]
    site, late = Site(*ranks), replace(ranks[1], steps=90)
    assert site.ranks(ranks[0], late, after_s=STEADY_S) == {}
    assert sorted(site.ranks(*ranks)) == [0, 1]


def test_groups_of_ranks_of_a_large_job_do_not_wait_for_each_other() -> None:
    train = view(0, world_size=16)
    evaluate = replace(view(1, world_size=16, steps=1), group="eval")
    assert list(Site(train, evaluate).ranks(train, evaluate, after_s=STEADY_S)) == [0]


def test_a_lone_rank_of_a_large_job_is_asked_once() -> None:
    lone = view(world_size=16)
    assert list(Site(lone).ranks(lone, after_s=STEADY_S)) == [0]


def test_ranks_that_ended_or_count_no_steps_are_left_alone() -> None:
    ended, still = replace(view(), alive=False), view(steps=0)
    assert Site(ended).ranks(ended, after_s=STEADY_S) == {}
    assert Site(still).ranks(still, after_s=STEADY_S) == {}
