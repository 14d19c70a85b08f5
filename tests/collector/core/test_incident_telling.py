"""What is told of an old incident ahead of its figures: ranks that join, an end that is put off, a stale node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evidence_values import evidence
from incident_watch import RULES, Watch, job, two_ranks
from sample_views import LEAK, rank_summary
from tidegauge.core.incidents.evidence import news_of
from tidegauge.core.verdicts import OK, Band, Verdict
from tidegauge.core.views import JobView

HALF_A_DAY_S = 43_200.0
DAY_S = 86_400.0


def left(seconds: float | None) -> Verdict:
    return LEAK._replace(seconds_to_oom=None if seconds is None else Band(seconds * 0.8, seconds, seconds * 1.2))


def leaking(count: int, seconds_left: float | None = None, *, stale: bool = False) -> JobView:
    verdict = left(seconds_left)
    ranks = (rank_summary(number, verdict=verdict if number < count else OK, uuid=None) for number in range(64))
    return job(*ranks, stale=(63,) if stale else ())


def look_with_evidence(watch: Watch, view: JobView, *, number: int) -> list[str]:
    """Another piece of evidence, that says something new, 100 s after the last look."""
    line = evidence().growth[0].line
    assert line is not None
    growth = (evidence().growth[0]._replace(line=line._replace(line=number)),)
    piece = news_of(evidence(evidence_id=f"e{number}", at_unix_s=watch.now_s, growth=growth))
    watch.now_s += 100.0
    told = watch.tracker.update([view], now_s=watch.now_s, evidence={view.key: [piece]})
    watch.told += told
    return [change.kind.value for change in told]


def old_watch(view: JobView, age_s: float = HALF_A_DAY_S) -> Watch:
    """Opened ``age_s`` ago, and all of it told."""
    watch = Watch()
    unknown = tuple(replace(rank, verdict=rank.verdict._replace(seconds_to_oom=None)) for rank in view.ranks)
    watch.look(replace(view, ranks=unknown), after_s=1.0)
    watch.look(view, after_s=age_s)
    return watch


def test_ranks_that_join_between_lines_of_evidence_add_up_until_they_are_told() -> None:
    watch = old_watch(leaking(20))
    kinds: list[str] = []
    for count in range(21, 33):
        kinds += watch.look(leaking(count), after_s=200.0)
        kinds += look_with_evidence(watch, leaking(count), number=count)
    assert kinds.count("spread") >= 3
    assert watch.followed.told.ranks.incident.ranks == tuple(range(len(watch.followed.told.ranks.incident.ranks)))
    assert len(watch.followed.told.ranks.incident.ranks) >= 30


def test_a_line_of_figures_that_brings_new_ranks_says_so() -> None:
    watch = old_watch(leaking(20, 30_000.0))
    assert watch.look(leaking(22, 30_000.0), after_s=60.0) == ["spread"]
    assert watch.look(leaking(23, 30_000.0), after_s=120.0) == []
    assert watch.look(leaking(23, 10_000.0), after_s=1.0) == ["spread"]
    assert watch.look(leaking(23, 4_000.0), after_s=1.0) == ["updated"], "they are known"


def test_a_node_that_becomes_stale_brings_new_ranks_as_such() -> None:
    watch = old_watch(leaking(20))
    assert watch.look(leaking(20, stale=True), after_s=120.0) == ["updated"]
    watch = old_watch(leaking(20))
    watch.look(leaking(40), after_s=1.0)
    watch.look(leaking(41), after_s=1.0)
    assert watch.look(leaking(41, stale=True), after_s=120.0) == ["spread"]


def test_after_a_restart_ranks_are_new_that_the_incident_did_not_have() -> None:
    watch = old_watch(leaking(20))
    watch.restart()
    watch.look(leaking(20), after_s=1.0)
    assert watch.look(leaking(22), after_s=RULES.update_every_s) == ["spread"]


@pytest.mark.parametrize("later_s", [60_000.0, None])
def test_an_end_that_is_put_off_is_told_before_it_would_have_come(later_s: float | None) -> None:
    watch = old_watch(two_ranks(left(60_000.0)))
    watch.look(two_ranks(left(5_000.0)), after_s=1.0)
    assert watch.look(two_ranks(left(later_s)), after_s=RULES.update_every_s - 1) == []
    assert watch.look(two_ranks(left(later_s)), after_s=1.0) == ["updated"]
    assert watch.last.seconds_to_oom == left(later_s).seconds_to_oom


def test_an_end_that_was_told_and_is_past_is_told_anew() -> None:
    watch = old_watch(two_ranks(left(5_000.0)), age_s=10 * DAY_S)
    assert watch.look(two_ranks(left(5_000.0)), after_s=2_400.0) == [], "about as was told"
    assert watch.look(two_ranks(left(5_000.0)), after_s=200.0) == ["updated"]


def test_an_end_that_is_far_away_is_told_with_the_figures() -> None:
    watch = old_watch(two_ranks(left(20_000.0)))
    watch.look(two_ranks(left(10_000.0 - 1)), after_s=1.0)
    assert watch.look(two_ranks(left(60_000.0)), after_s=120.0) == []
    assert watch.look(two_ranks(left(60_000.0)), after_s=RULES.update_after_s(HALF_A_DAY_S)) == ["updated"]


@pytest.mark.slow
def test_an_end_that_swings_for_a_week_is_some_hundred_lines() -> None:
    watch = Watch()
    for turn in range(7 * 1440):
        watch.look(two_ranks(left(5_000.0 if turn % 2 else 60_000.0)), after_s=60.0)
    assert len(watch.told) < 500


def test_a_node_that_is_stale_every_other_minute_is_told_as_often_as_figures() -> None:
    watch = old_watch(two_ranks(LEAK))
    assert watch.look(two_ranks(LEAK, stale=(1,)), after_s=RULES.update_every_s) == ["updated"], "the first at once"
    told = len(watch.told)
    for turn in range(1440):
        watch.look(two_ranks(LEAK, stale=(1,) if turn % 2 else ()), after_s=60.0)
    assert len(watch.told) - told < 60
