"""Who is asked for evidence, how often, and for how long a window."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_values import news, nothing_found
from examples import fewer
from sample_views import LEAK, NOW_S, identity, job_view, rank_summary
from tidegauge.core.evidence import CauseFound, EvidenceReason
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound
from tidegauge.core.evidence.request import LONG_WINDOW, Window, evidence_request, window_for
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents.escalation import (
    SEARCH_AND_TRIP_S,
    EscalationRules,
    EscalationState,
    EvidenceAsk,
    escalate,
    learnt,
    refused,
    under_way,
)
from tidegauge.core.incidents.evidence import EvidenceNews, news_of
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import JobView, RankSummary

RULES = EscalationRules()
SUSPECT = LEAK._replace(state=LeakState.SUSPECTED, severity=None, seconds_to_oom=None)
PERIOD_S = RULES.period_s


def rank(number: int = 0, verdict: Verdict = LEAK, *, profile: str = "auto", job_id: str = "4711",
         uid: int = 1001, **changes: Any) -> RankSummary:  # fmt: skip
    who = identity(number, job_id=JobId(job_id), profile=profile)
    return rank_summary(number, identity=who, verdict=verdict, uid=uid, **changes)


def job(*ranks: RankSummary, **changes: Any) -> JobView:
    suspects = tuple(int(one.identity.rank) for one in ranks if one.verdict.state is not LeakState.OK)
    view = job_view(
        job_id=str(ranks[0].identity.job_id), ranks=ranks, suspects=suspects, running=True,
        rank_nodes=tuple(f"engine-{int(one.identity.rank)}" for one in ranks),
    )  # fmt: skip
    return replace(view, **changes)


def jobs(count: int, *, uid: int = 1001) -> list[JobView]:
    return [job(rank(job_id=f"{uid}-{number}", uid=uid)) for number in range(count)]


class Escalation:
    """The state from turn to turn, and the time."""

    def __init__(self) -> None:
        self.state = EscalationState()
        self.now_s = NOW_S

    def turn(self, *views: JobView, after_s: float = 0.0) -> list[EvidenceAsk]:
        self.now_s += after_s
        asks, self.state = escalate(self.state, views, now_s=self.now_s)
        return list(asks)

    def learn(self, piece: EvidenceNews, *, after_s: float = 0.0) -> None:
        self.now_s += after_s
        self.state = learnt(self.state, piece, now_s=self.now_s)

    def refuse(self, ask: EvidenceAsk, *, for_good: bool = False) -> None:
        self.state = refused(self.state, ask, for_good=for_good, now_s=self.now_s)


@pytest.fixture
def escalation() -> Escalation:
    return Escalation()


def answer(ask: EvidenceAsk, **changes: Any) -> EvidenceNews:
    """The evidence that the rank gives when asked."""
    return news(ask.target.rank, evidence_id=ask.evidence_id, job=ask.job, **changes)


def no_answer(ask: EvidenceAsk) -> EvidenceNews:
    return news_of(nothing_found(ask.target.rank, evidence_id=ask.evidence_id, job=ask.job))


def test_a_suspected_rank_of_level_auto_is_asked(escalation: Escalation) -> None:
    (ask,) = escalation.turn(job(rank(0, OK), rank(1, SUSPECT)))
    assert (ask.job, ask.target.rank, ask.target.node_id) == (JobKey("4711", 0, 1001), 1, "engine-1")
    assert ask.target.process == rank(1).process
    assert ask.request == {
        "command": "evidence", "id": ask.evidence_id, "reason": "suspected", "warm_up_steps": 4, "window_steps": 30,
        "enough_s": 30.0, "most_s": 120.0, "max_events": 10_000, "holders": True,
    }  # fmt: skip
    assert len(ask.evidence_id) <= 100
    assert ask.evidence_id.isascii()


@pytest.mark.parametrize(("profile", "asked"), [("auto", 1), ("trace", 1), ("stats", 0), ("dormant", 0), ("off", 0)])
def test_the_level_decides(escalation: Escalation, profile: str, asked: int) -> None:
    assert len(escalation.turn(job(rank(profile=profile)))) == asked


@pytest.mark.parametrize(
    "view",
    [
        job(rank(0, OK)),
        job(rank(0, alive=False)),
        job(rank(0), stale=(0,)),
        job(rank(0), running=False),
        job(rank(0, LEAK._replace(signal=None))),
        job(rank(0), ranks=()),
        job(rank(0), rank_nodes=()),
    ],
    ids=["quiet", "ended", "stale", "not running", "no signal", "no ranks", "no node"],
)
def test_escalation_skips_ranks_that_cannot_or_need_not_answer(escalation: Escalation, view: JobView) -> None:
    assert escalation.turn(view) == []


def test_an_owner_who_wants_no_actions_gets_evidence_all_the_same(escalation: Escalation) -> None:
    assert len(escalation.turn(job(rank(), exempt=True))) == 1


def test_escalation_asks_one_rank_of_a_job_at_a_time_worst_first(escalation: Escalation) -> None:
    view = job(rank(0), rank(1), rank(2), suspects=(2, 0, 1))
    (first,) = escalation.turn(view)
    assert first.target.rank == 2
    assert escalation.turn(view, after_s=60.0) == []
    escalation.learn(no_answer(first), after_s=10.0)
    (second,) = escalation.turn(view)
    assert second.target.rank == 0


def test_a_rank_that_never_answers_holds_up_its_job_for_a_window_only(escalation: Escalation) -> None:
    view = job(rank(0), rank(1))
    escalation.turn(view)
    assert escalation.turn(view, after_s=120.0 + SEARCH_AND_TRIP_S - 1.0) == []
    assert [ask.target.rank for ask in escalation.turn(view, after_s=1.0)] == [1]


def test_escalation_asks_a_single_rank_if_all_ranks_grow_alike(escalation: Escalation) -> None:
    view = job(rank(0), rank(1), common=True)
    (first,) = escalation.turn(view)
    escalation.learn(no_answer(first), after_s=60.0)
    assert escalation.turn(view, after_s=PERIOD_S - 61.0) == []
    assert len(escalation.turn(view, after_s=1.0)) == 1


def test_the_surest_and_most_severe_job_is_first(escalation: Escalation) -> None:
    mild = LEAK._replace(severity=Severity.WARNING)
    views = [
        job(rank(0, verdict, job_id=f"job-{number}", uid=number))
        for number, verdict in enumerate([SUSPECT, mild, LEAK, LEAK._replace(seconds_to_oom=Band(60.0, 70.0, 80.0))])
    ]
    assert [ask.job.job_id for ask in escalation.turn(*views)] == ["job-3", "job-2", "job-1", "job-0"]


def test_no_user_and_nobody_at_all_has_more_than_so_many_at_once(escalation: Escalation) -> None:
    asked = escalation.turn(*jobs(6, uid=1), *jobs(6, uid=2), *jobs(6, uid=3))
    assert len(asked) == RULES.most_in_all
    assert max(sum(ask.job.uid == uid for ask in asked) for uid in (1, 2, 3)) == RULES.most_of_tenant
    assert escalation.turn(*jobs(6, uid=1), *jobs(6, uid=3), after_s=5.0) == []
    escalation.learn(no_answer(asked[0]))
    assert len(escalation.turn(*jobs(6, uid=1), *jobs(6, uid=2), *jobs(6, uid=3))) == 1


def test_what_is_known_before_a_search_is_over_changes_nothing(escalation: Escalation) -> None:
    (ask,) = escalation.turn(job(rank(0), rank(1)))
    before = escalation.state
    escalation.learn(news(ask.target.rank, evidence_id=f"{ask.evidence_id}+1", job=ask.job, searching=True))
    assert escalation.state == before


def test_a_rank_is_asked_again_after_a_period_that_doubles_while_nothing_new_is_learnt(escalation: Escalation) -> None:
    view, waits = job(rank()), []
    (ask,) = escalation.turn(view)
    for _ in range(6):
        escalation.learn(no_answer(ask), after_s=60.0)
        waited_s = 60.0
        while not (asks := escalation.turn(view, after_s=60.0)):
            waited_s += 60.0
        (ask,) = asks
        waits.append((waited_s + 60.0) / 3600.0)
    assert waits == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0]


def test_a_search_that_was_cut_short_is_tried_again_in_minutes(escalation: Escalation) -> None:
    view, waits = job(rank()), []
    (ask,) = escalation.turn(view)
    for _ in range(5):
        piece = answer(ask, cause=CauseFound(EvidenceCause.CLOSURE, Confidence.LIKELY))
        escalation.learn(piece._replace(brief=piece.brief._replace(unfinished=True)), after_s=60.0)
        waited_s = 0.0
        while not (asks := escalation.turn(view, after_s=60.0)):
            waited_s += 60.0
        (ask,) = asks
        waits.append((waited_s + 60.0) / 60.0)
    assert waits[:2] == [5.0, 10.0]
    assert sorted(waits) == waits
    escalation.learn(answer(ask, cause=CauseFound(EvidenceCause.CLOSURE, Confidence.LIKELY)), after_s=60.0)
    assert escalation.turn(view, after_s=1200.0) == [], "one that ended is not"


def test_escalation_shortens_the_period_again_after_a_new_answer(escalation: Escalation) -> None:
    view = job(rank())
    for _ in range(3):
        (ask,) = escalation.turn(view, after_s=RULES.longest_period_s)
        escalation.learn(no_answer(ask), after_s=60.0)
    (ask,) = escalation.turn(view, after_s=RULES.longest_period_s)
    escalation.learn(answer(ask, cause=CauseFound(EvidenceCause.CLOSURE, Confidence.LIKELY)), after_s=60.0)
    assert escalation.turn(view, after_s=PERIOD_S - 61.0) == []
    (ask,) = escalation.turn(view, after_s=1.0)
    escalation.learn(no_answer(ask), after_s=60.0)
    assert escalation.turn(view, after_s=PERIOD_S - 61.0) == []
    assert len(escalation.turn(view, after_s=1.0)) == 1, "and the doubling begins anew"


def test_a_cause_that_is_named_is_left_alone_for_two_hours_on_all_ranks(escalation: Escalation) -> None:
    view = job(rank(0), rank(1))
    (ask,) = escalation.turn(view)
    escalation.learn(answer(ask), after_s=60.0)
    assert escalation.turn(view, after_s=RULES.named_quiet_s - 1.0) == []
    assert len(escalation.turn(view, after_s=1.0)) == 1


def test_a_rank_whose_bound_is_refuted_is_looked_into_again_though_its_cause_is_named(escalation: Escalation) -> None:
    (ask,) = escalation.turn(job(rank(0)))
    escalation.learn(answer(ask), after_s=60.0)
    fills = GrowthBound("`window` (deque)", "deque", 4, 9, 200, 1 << 30, Band(1, 2, 3), BoundState.REFUTED)
    assert [ask.target.rank for ask in escalation.turn(job(rank(0, bound=fills)), after_s=PERIOD_S)] == [0]


@pytest.mark.parametrize("common", [True, False])
def test_a_peer_to_which_the_bound_that_was_found_does_not_apply_is_looked_into(
    escalation: Escalation, common: bool
) -> None:
    (ask,) = escalation.turn(job(rank(0), rank(1), common=common))
    escalation.learn(answer(ask), after_s=60.0)
    holds = GrowthBound("`window` (deque)", "deque", 4, 9, 200, 1 << 30, Band(1, 2, 3), BoundState.HOLDS)
    alike = rank(1, bound=holds._replace(of_rank=0))
    assert escalation.turn(job(rank(0, bound=holds), alike, common=common), after_s=60.0) == []
    assert escalation.turn(job(rank(0, bound=holds._replace(state=None)), rank(1), common=common), after_s=5.0) == []
    beside = job(rank(0, bound=holds), rank(1), common=common)
    assert [ask.target.rank for ask in escalation.turn(beside, after_s=5.0)] == [1]


def test_a_named_leak_does_not_keep_fragmentation_from_being_looked_at(escalation: Escalation) -> None:
    (ask,) = escalation.turn(job(rank(0)))
    escalation.learn(answer(ask), after_s=60.0)
    other = LEAK._replace(signal=Signal.RESERVED)
    assert [ask.target.rank for ask in escalation.turn(job(rank(0, OK), rank(1, other)), after_s=60.0)] == [1]


def test_named_graphs_settle_reserved_memory_and_no_leak_beside_it(escalation: Escalation) -> None:
    reserved = LEAK._replace(signal=Signal.RESERVED)
    (ask,) = escalation.turn(job(rank(0, reserved)))
    escalation.learn(answer(ask, cause=CauseFound(EvidenceCause.CUDA_GRAPHS, Confidence.NAMED)), after_s=60.0)
    assert escalation.turn(job(rank(0, OK), rank(1, reserved)), after_s=60.0) == []
    assert [ask.target.rank for ask in escalation.turn(job(rank(0, OK), rank(1)), after_s=60.0)] == [1]


def test_no_more_than_so_many_ranks_of_a_job_are_asked_within_a_period(escalation: Escalation) -> None:
    view, asked = job(*(rank(number) for number in range(8))), 0
    for _ in range(int(PERIOD_S // 60) - 1):
        for ask in escalation.turn(view, after_s=60.0):
            asked += 1
            escalation.learn(no_answer(ask))
    assert asked == RULES.ranks_per_period


def test_a_busy_rank_is_asked_again_after_minutes_one_that_cannot_after_hours(escalation: Escalation) -> None:
    view = job(rank())
    (ask,) = escalation.turn(view)
    escalation.refuse(ask)
    assert escalation.turn(view, after_s=RULES.refused_again_s - 1.0) == []
    (ask,) = escalation.turn(view, after_s=1.0)
    escalation.refuse(ask)
    assert escalation.turn(view, after_s=2 * RULES.refused_again_s - 1.0) == []
    (ask,) = escalation.turn(view, after_s=1.0)
    escalation.refuse(ask, for_good=True)
    assert escalation.turn(view, after_s=RULES.longest_period_s - 1.0) == []
    assert len(escalation.turn(view, after_s=1.0)) == 1


def test_a_refusal_frees_the_place_at_once(escalation: Escalation) -> None:
    asked = escalation.turn(*jobs(6))
    escalation.refuse(asked[0])
    assert len(escalation.turn(*jobs(6))) == 1


def test_a_refusal_that_comes_late_does_not_end_another_window(escalation: Escalation) -> None:
    view = job(rank())
    (first,) = escalation.turn(view)
    (second,) = escalation.turn(view, after_s=PERIOD_S)
    escalation.refuse(first)
    assert under_way(escalation.state, escalation.now_s) == ((second.job, 0),)


def test_after_a_restart_the_evidence_that_is_kept_holds_ranks_back(escalation: Escalation) -> None:
    view = job(rank(0))
    for number, at_s in enumerate([0.0, PERIOD_S, 3 * PERIOD_S]):
        cut = news_of(nothing_found(0, evidence_id=f"auto-{number}"))
        escalation.state = learnt(escalation.state, cut, now_s=NOW_S + at_s)
    escalation.now_s += 3 * PERIOD_S
    assert escalation.turn(view, after_s=4 * PERIOD_S - 1.0) == []
    assert len(escalation.turn(view, after_s=1.0)) == 1


def test_evidence_that_somebody_else_asked_for_counts_too(escalation: Escalation) -> None:
    escalation.learn(news(0, cause=CauseFound(), evidence_id="asked-by-hand", reason="asked"))
    assert escalation.turn(job(rank(0)), after_s=PERIOD_S - 1.0) == []


def test_jobs_that_are_gone_are_forgotten_once_they_hold_nobody_back(escalation: Escalation) -> None:
    escalation.turn(job(rank()))
    escalation.turn(after_s=PERIOD_S - 1.0)
    assert escalation.state.looks
    escalation.turn(after_s=1.0)
    assert escalation.state == EscalationState()


@pytest.mark.parametrize(
    ("verdict", "window"),
    [
        (LEAK, Window(4, 30, 30.0, 120.0, True)),
        (OK, Window()),
        (LEAK._replace(signal=Signal.HOST), Window()),
        (LEAK._replace(signal=Signal.RESERVED), Window()),
        (LEAK._replace(signal=Signal.NONTORCH), Window(holders=False)),
        (LEAK._replace(cause="staircase"), LONG_WINDOW),
        (LEAK._replace(bytes_per_second=Band(7e5, 8e5, 9e5)), Window(most_s=1.5 * 8 * 12 * 1024**2 / 0.8e6)),
        (LEAK._replace(bytes_per_second=Band(0.1, 0.2, 0.3)), Window(most_s=300.0)),
        (LEAK._replace(bytes_per_second=None), Window()),
    ],
)
def test_the_window_fits_what_grows(verdict: Verdict, window: Window) -> None:
    assert window_for(verdict) == window


def test_a_request_for_somebody_says_so() -> None:
    request = evidence_request("x", EvidenceReason.ASKED, Window(), max_events=500)
    assert (request["reason"], request["max_events"]) == ("asked", 500)


@fewer(2)
@given(
    looks=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=12, unique=True),
            st.sampled_from(["never", "nothing", "something", "busy"]),
            st.floats(1.0, 4000.0),
        ),
        max_size=25,
    )
)
def test_whatever_happens_limits_hold(looks: list[tuple[list[tuple[int, int]], str, float]]) -> None:
    escalation, asked_at_s = Escalation(), dict[tuple[JobKey, int], float]()
    for suspects, then, after_s in looks:
        by_job: dict[int, list[int]] = {}
        for number, one in suspects:
            by_job.setdefault(number, []).append(one)
        views = [
            job(*(rank(one, job_id=f"j{number}", uid=number % 2) for one in ranks)) for number, ranks in by_job.items()
        ]
        asks = escalation.turn(*views, after_s=after_s)
        busy = under_way(escalation.state, escalation.now_s)
        assert len({one for one, _ in busy}) == len(busy) <= RULES.most_in_all
        assert all(sum(one.uid == uid for one, _ in busy) <= RULES.most_of_tenant for uid in (0, 1))
        for ask in asks:
            place = ask.job, ask.target.rank
            earlier_s = asked_at_s.get(place)
            assert earlier_s is None or escalation.now_s - earlier_s >= RULES.refused_again_s
            asked_at_s[place] = escalation.now_s
            if then == "nothing":
                escalation.learn(no_answer(ask))
            elif then == "something":
                escalation.learn(answer(ask, at_unix_s=escalation.now_s))
            elif then == "busy":
                escalation.refuse(ask)
