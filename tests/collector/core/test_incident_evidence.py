"""Which evidence goes to which incident, and what the incident says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_values import LINE, NAMED, evidence, news, nothing_found
from sample_views import NOW_S
from scheduler_values import incident
from tidegauge.core.evidence import CauseFound
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.growth_bound import BoundState, GrowthBound
from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.evidence import (
    BELONGS_TO,
    MAX_RANKS,
    MAX_SNAPSHOTS,
    EvidenceNews,
    adds_knowledge,
    belongs,
    is_news,
    newest_of_ranks,
    news_of,
    snapshot_place,
    with_evidence,
)
from tidegauge.core.verdicts import Band


def test_every_cause_belongs_to_some_growth_and_to_every_crisis() -> None:
    assert set(BELONGS_TO) == set(EvidenceCause)
    for cause in EvidenceCause:
        brief = news(cause=CauseFound(cause)).brief
        assert any(belongs(brief, growth) for growth in IncidentCause if growth.is_growth)
        assert belongs(brief, IncidentCause.OUT_OF_MEMORY)
        assert belongs(brief, IncidentCause.SHARE_EXCEEDED)


@pytest.mark.parametrize(
    ("found", "about", "fits"),
    [
        (EvidenceCause.RETAINED_GRAPH, IncidentCause.LEAK, True),
        (EvidenceCause.RETAINED_GRAPH, IncidentCause.HOST_MEMORY, True),
        (EvidenceCause.RETAINED_GRAPH, IncidentCause.FRAGMENTATION, False),
        (EvidenceCause.FRAGMENTATION, IncidentCause.LEAK, False),
        (EvidenceCause.COMMUNICATORS, IncidentCause.OUTSIDE_ALLOCATOR, True),
        (EvidenceCause.PINNED_HOST, IncidentCause.HOST_MEMORY, True),
        (EvidenceCause.UNKNOWN, IncidentCause.FRAGMENTATION, True),
    ],
)
def test_evidence_goes_to_incidents_that_its_cause_explains(
    found: EvidenceCause, about: IncidentCause, fits: bool
) -> None:
    after = with_evidence(incident(about), [news(cause=CauseFound(found))])
    assert [brief.evidence_id for brief in after.evidence] == ["auto-1"] * fits


@pytest.mark.parametrize(("rank", "state"), [(1, BoundState.HOLDS), (0, BoundState.UNRELATED)])
def test_incident_evidence_bound_of_another_rank_does_not_apply(rank: int, state: BoundState) -> None:
    """The incident is about rank 1."""
    ends = GrowthBound("`window`", "deque", 60, 150, 70, 300, Band(360, 360, 360), BoundState.HOLDS)
    [brief] = with_evidence(incident(), [news(rank=rank, bound=ends)]).evidence
    assert brief.bound is not None
    assert brief.bound.state is state


def test_an_incident_says_where_the_snapshots_lie() -> None:
    after = with_evidence(incident(), [news()])
    assert after.snapshots == tuple(
        f"node0:/var/lib/tidegauge/snapshots/lab/4711/0/rank-1/step-{step}-1800000000250.snap.zst"
        for step in (204, 234)
    )


def test_a_newer_piece_of_a_rank_takes_the_place_of_the_older_with_its_snapshots() -> None:
    old, new = news(), news(evidence_id="auto-2", at_unix_s=NOW_S + 1800.0, snapshots=())
    after = with_evidence(incident(), [new, old])
    assert [brief.evidence_id for brief in after.evidence] == ["auto-2"]
    assert after.snapshots == ()


def test_a_window_that_was_cut_short_does_not_hide_what_is_known() -> None:
    late = news_of(nothing_found(evidence_id="cut", at_unix_s=NOW_S + 1800.0))
    assert [brief.evidence_id for brief in with_evidence(incident(), [news(), late]).evidence] == ["auto-1"]
    assert [brief.evidence_id for brief in with_evidence(incident(), [late]).evidence] == ["cut"]


def test_a_search_that_goes_on_does_not_hide_what_is_known() -> None:
    part = news(evidence_id="auto-2+1", at_unix_s=NOW_S + 60.0, cause=CauseFound(), search=None, searching=True)
    whole = news(evidence_id="auto-2", at_unix_s=NOW_S + 600.0)
    assert [brief.evidence_id for brief in with_evidence(incident(), [news(), part]).evidence] == ["auto-1"]
    told = with_evidence(incident(), [part])
    assert [brief.evidence_id for brief in told.evidence] == ["auto-2+1"]
    assert [brief.evidence_id for brief in with_evidence(told, [part, whole]).evidence] == ["auto-2"]
    cut_short = news(evidence_id="auto-2", at_unix_s=NOW_S + 600.0, cause=CauseFound(), search=None)
    assert is_news(told, with_evidence(told, [part, cut_short]))


def test_the_piece_that_says_most_is_the_first() -> None:
    likely = news(2, cause=NAMED._replace(confidence=Confidence.LIKELY))
    line_only = news(0, cause=CauseFound(), search=None)
    after = with_evidence(incident(), [line_only, likely, news(1), news_of(nothing_found(3))])
    assert [brief.rank for brief in after.evidence] == [1, 2, 0, 3]


def test_incident_keeps_evidence_that_later_pieces_do_not_include() -> None:
    known = with_evidence(incident(), [news(1)])
    after = with_evidence(known, [news(2, at_unix_s=NOW_S + 5.0, snapshots=())])
    assert {brief.rank for brief in after.evidence} == {1, 2}
    assert after.snapshots == known.snapshots
    assert with_evidence(known, []) is known


def test_pieces_that_follow_each_other_for_months_leave_a_bounded_number_of_snapshots() -> None:
    """As they come from a keeper that has the newest forty of a job: rank 7 was looked at once, rank 1 on and on."""
    once = news(7)
    after, kept = with_evidence(incident(), [once]), [once]
    for number in range(2, 1002):
        kept = [*kept, _later(number, rank=1 + number % 2)][-40:]
        after = with_evidence(after, kept)
        assert len(after.snapshots) <= MAX_SNAPSHOTS
    newest = [snapshot_place(ref) for piece in kept[-2:] for ref in piece.snapshots]
    assert set(after.snapshots[: len(newest)]) == set(newest)
    assert set(after.snapshots) == {*newest, *(snapshot_place(ref) for ref in once.snapshots)}, "of all that it says"


def test_snapshots_of_pieces_that_nobody_keeps_any_more_are_bounded_too() -> None:
    after = incident()
    for number in range(2, 200):
        after = with_evidence(after, [_later(number, rank=number % 20)])
        assert len(after.snapshots) <= MAX_SNAPSHOTS
    assert len(after.snapshots) == MAX_SNAPSHOTS


def _later(number: int, *, rank: int) -> EvidenceNews:
    refs = tuple(ref._replace(key=f"{ref.key}-{number}") for ref in news(rank).snapshots)
    return news(rank, evidence_id=f"later-{number}", at_unix_s=NOW_S + number, snapshots=refs)


def test_is_news_counts_only_actionable_changes() -> None:
    before = with_evidence(incident(), [news()])
    longer_list = evidence(evidence_id="next", at_unix_s=NOW_S + 1800.0, grown_bytes=1)
    assert not is_news(before, with_evidence(before, [news(), news_of(longer_list)]))
    other_line = replace(longer_list, growth=(longer_list.growth[0]._replace(line=LINE._replace(line=99)),))
    assert is_news(before, with_evidence(before, [news(), news_of(other_line)]))
    assert is_news(incident(), before)
    assert is_news(before, with_evidence(before, [news(), news(2)]))


def test_knowledge_is_added_by_what_was_not_known_of_the_rank() -> None:
    assert adds_knowledge(None, news().brief)
    assert not adds_knowledge(None, news_of(nothing_found()).brief)
    assert not adds_knowledge(news().brief, news(evidence_id="again").brief)
    assert adds_knowledge(news(cause=CauseFound()).brief, news().brief)


PIECES = st.lists(
    st.builds(
        lambda rank, at_s, cause, found, number: news_of(
            (evidence if found else nothing_found)(
                rank, evidence_id=f"e{number}", at_unix_s=at_s, **({"cause": CauseFound(cause)} if found else {})
            )
        ),
        st.integers(0, 20), st.floats(0, 1e9), st.sampled_from(EvidenceCause), st.booleans(), st.integers(0, 99),
    ),
    max_size=30,
    unique_by=lambda piece: piece.brief.evidence_id,
)  # fmt: skip


@given(pieces=PIECES, cause=st.sampled_from(IncidentCause))
def test_any_evidence_gives_one_fitting_piece_of_a_rank_and_the_same_again(
    pieces: list[EvidenceNews], cause: IncidentCause
) -> None:
    after = with_evidence(incident(cause), pieces)
    ranks = [brief.rank for brief in after.evidence]
    assert len(ranks) == len(set(ranks)) <= MAX_RANKS
    assert all(belongs(brief, cause) for brief in after.evidence)
    assert with_evidence(after, pieces) == after
    assert not is_news(after, with_evidence(after, pieces))
    places = {ref.key for piece in newest_of_ranks(pieces) for ref in piece.snapshots}
    if cause is IncidentCause.OUT_OF_MEMORY:
        assert len(after.snapshots) == len(places)
