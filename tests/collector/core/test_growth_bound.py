"""Growth that ends by itself: the bound found in evidence, held against memory, and what is said of it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from evidence_values import evidence
from incident_watch import Watch, job
from sample_views import GIB, LEAK, MIB, rank_summary
from tidegauge.core.evidence import StackGrowth, brief_of
from tidegauge.core.evidence.bound_finding import find_bound
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.cause_input import CauseInput
from tidegauge.core.evidence.causes import name_cause
from tidegauge.core.evidence.growth_bound import BoundState, BoundWatch, GrowthBound, bounded_verdict
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import ContainerBound, Holder, HolderKind, HolderSearch
from tidegauge.core.evidence.words import (
    advice_of,
    because_lines,
    bound_advice,
    bound_words,
    brief_sentences,
    end_words,
)
from tidegauge.core.evidence.workspaces import Workspaces, grown_workspaces
from tidegauge.core.incidents import IncidentState
from tidegauge.core.incidents.evidence import news_of
from tidegauge.core.incidents.steps import IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import RankSummary
from tidegauge.core.wire import from_wire, to_wire

LINE = CodeLine("/home/ada/train.py", 41, "features")
STEPS, EACH = 30, 4 * MIB
BOUND = ContainerBound(0, "lru_cache", 70, 220, STEPS, STEPS * EACH, EACH, EACH)
HOLDER = Holder(
    HolderKind.CONTAINER,
    "train.py: features -> lru_cache of features, 70 answers -> Tensor[8,128,1024] float32",
    held_bytes=STEPS * EACH,
    tensors=STEPS,
    name="lru_cache of features, 70 answers",
    where=LINE,
    bound=BOUND,
)
FILLS = Verdict(
    LeakState.LEAK, Severity.CRITICAL, Signal.ALLOCATED, onset_step=10, grown_bytes=280 * MIB, headroom_eaten=0.2,
    steps_to_oom=Band(100, 200, 300), seconds_to_oom=Band(100, 200, 300),
)  # fmt: skip
"""280 MiB were gained, and four times as much is free."""


def filling(*holders: Holder, verdict: Verdict = FILLS, **changes: Any) -> CauseInput:
    """A window in which a cache took one answer of 4 MiB each step."""
    growth = (StackGrowth(STEPS * EACH, STEPS, (LINE,), LINE, EACH),)
    search = HolderSearch(holders or (HOLDER,), STEPS * EACH, STEPS * EACH)
    case = CauseInput(
        growth, STEPS * EACH, window_steps=STEPS, search=search, verdict=verdict, late_step=70, live_bytes=500 * MIB
    )
    return case._replace(**changes)


def bounded(**changes: Any) -> Holder:
    return HOLDER._replace(bound=BOUND._replace(**changes))


def bound(**changes: Any) -> GrowthBound:
    found = find_bound(filling())
    assert found is not None
    return found._replace(**changes)


class TestTheBoundInEvidence:
    def test_bound_computes_bytes_left_from_item_count_and_size(self) -> None:
        found = bound()
        assert (found.items, found.most_items, found.level_bytes, found.step) == (70, 220, 500 * MIB, 70)
        assert found.left_bytes == Band(150 * EACH, 150 * EACH, 150 * EACH)
        assert found.end_bytes.likely == 1100 * MIB

    def test_items_of_different_sizes_make_a_range(self) -> None:
        found = find_bound(filling(bounded(least_item_bytes=MIB, most_item_bytes=8 * MIB)))
        assert found is not None
        assert found.left_bytes == Band(150 * MIB, 150 * EACH, 1200 * MIB)

    def test_bound_allows_for_growth_held_elsewhere(self) -> None:
        search = HolderSearch((HOLDER,), STEPS * EACH * 5 // 4, STEPS * EACH)
        found = find_bound(filling(search=search, grown_bytes=STEPS * EACH * 5 // 4))
        assert found is not None
        assert (found.left_bytes.low, found.left_bytes.likely) == (600 * MIB, 750 * MIB)

    def test_blocks_that_were_not_looked_for_count_to_the_items(self) -> None:
        found = find_bound(filling(grown_bytes=2 * STEPS * EACH))
        assert found is not None
        assert found.left_bytes.likely == 1200 * MIB

    def test_two_containers_that_fill_together_end_together(self) -> None:
        half = bounded(held_bytes=STEPS * EACH // 2, least_item_bytes=EACH // 2, most_item_bytes=EACH // 2)
        half = half._replace(held_bytes=STEPS * EACH // 2)
        assert half.bound is not None
        other = half._replace(bound=half.bound._replace(number=1, most_items=320))
        found = find_bound(filling(half, other))
        assert found is not None
        assert found.left_bytes.likely == (150 + 250) * EACH // 2
        assert found.what.endswith(" and 1 more")

    @pytest.mark.parametrize(
        "case",
        [
            filling(HOLDER._replace(bound=None)),
            filling(search=HolderSearch((HOLDER,), STEPS * EACH * 2, STEPS * EACH)),
            filling(bounded(found_items=1)),
            filling(live_bytes=None),
            filling(search=None),
            filling(window_steps=0),
            # a queue that is used up as fast as it is filled, beside a leak of a fifth of that
            filling(grown_bytes=STEPS * EACH // 5),
        ],
        ids=["no bound", "half of it", "one item that grows", "no snapshot", "no search", "no steps", "turned over"],
    )
    def test_find_bound_returns_none_without_proof_of_a_bound(self, case: CauseInput) -> None:
        assert find_bound(case) is None

    def test_a_container_that_is_used_up_is_not_told_to_get_a_bound(self) -> None:
        advice = name_cause(filling(grown_bytes=STEPS * EACH // 5)).advice
        assert advice is not None
        assert "has a bound (70 of 220): look for what else grows" in advice

    def test_items_that_become_larger_are_bounded_by_no_number(self) -> None:
        """All 100 lists of a full deque grow: the window sees 1 MiB more in each, and 20 MiB each were gained."""
        grows = bounded(items=100, most_items=100, found_items=30, held_bytes=30 * MIB)
        verdict = FILLS._replace(grown_bytes=2000 * MIB)
        search = HolderSearch((grows,), 30 * MIB, 30 * MIB)
        assert find_bound(filling(search=search, grown_bytes=30 * MIB, verdict=verdict)) is None

    def test_bound_round_trips_through_reports(self) -> None:
        found = bound(state=BoundState.TOO_LARGE, missing_bytes=5)
        assert from_wire(GrowthBound, to_wire(found)) == found


class TestWords:
    def test_a_cache_that_fills_needs_nothing(self) -> None:
        found = name_cause(filling())
        assert (found.cause, found.confidence) == (EvidenceCause.PYTHON_CONTAINER, Confidence.NAMED)
        piece = evidence(cause=found, bound=find_bound(filling()))
        assert because_lines(piece)[-1] == (
            "lru_cache of features (train.py) fills, and ends at about 1.1 GiB (70 of 220 answers)."
        )
        assert advice_of(piece) == "nothing to do; lower its `maxsize` if the memory is needed for something else"

    def test_bound_that_does_not_fit_warns_of_oom_before_it_is_full(self) -> None:
        found = find_bound(filling(verdict=FILLS._replace(headroom_eaten=0.5)))
        assert found is not None
        assert bound_words(found) == (
            "lru_cache of features (train.py) fills (70 of 220 answers), and needs 320.0 MiB more than there is: out "
            "of memory before it is full"
        )
        assert bound_advice(found) == "lower its `maxsize`"
        assert end_words(found) == "needs 320.0 MiB more than there is"

    def test_bound_that_was_refuted_says_so_in_the_brief(self) -> None:
        brief = brief_of(evidence(bound=bound(state=BoundState.REFUTED)))
        said = " ".join(brief_sentences(brief))
        assert "was expected to end at about 1.1 GiB (220 answers), but memory grew beyond that: something else" in said
        assert "Collect evidence again" in said
        assert "append" not in said

    def test_bound_advice_does_not_claim_a_fit_without_a_known_limit(self) -> None:
        found = find_bound(filling(verdict=FILLS._replace(headroom_eaten=None)))
        assert found is not None
        assert bound_advice(found) == "it ends by itself; lower its `maxsize` if that is more than there is"

    def test_a_range_is_told_where_items_differ(self) -> None:
        case = filling(
            bounded(least_item_bytes=MIB, most_item_bytes=8 * MIB), verdict=FILLS._replace(headroom_eaten=0.1)
        )
        found = find_bound(case)
        assert found is not None
        assert "ends at about 650.0 MiB to 1.7 GiB" in bound_words(found)

    @pytest.mark.parametrize("state", [BoundState.REFUTED, BoundState.UNRELATED, BoundState.TOO_LARGE])
    def test_bound_texts_never_advise_doing_nothing_while_in_danger(self, state: BoundState) -> None:
        piece = evidence(cause=name_cause(filling()), bound=bound(state=state))
        said = " ".join((*because_lines(piece), advice_of(piece) or "", *brief_sentences(brief_of(piece)))).lower()
        assert "nothing to do" not in said
        assert "and ends at" not in said


class TestAgainstMemory:
    def watched(self, *levels: int, verdict: Verdict = FILLS, steps_each: int = 10) -> GrowthBound:
        watch, step = BoundWatch(bound()), 70
        for level in levels:
            for _ in range(steps_each):
                step += 1
                now = watch.update(step=step, allocated_bytes=level * MIB, verdict=verdict)
        return now

    def test_growth_within_it_is_no_danger(self) -> None:
        now = self.watched(600, 700)
        assert now.holds
        calm = bounded_verdict(FILLS, now)
        assert (calm.state, calm.severity) == (LeakState.LEAK, Severity.WARNING)
        assert (calm.steps_to_oom, calm.seconds_to_oom) == (None, None)

    def test_a_note_stays_a_note(self) -> None:
        now = self.watched(600)
        assert bounded_verdict(FILLS._replace(severity=Severity.NOTE), now).severity is Severity.NOTE

    def test_growth_that_does_not_fit_is_as_dangerous_as_before(self) -> None:
        verdict = FILLS._replace(headroom_eaten=0.6)
        now = self.watched(600, verdict=verdict)
        assert now.state is BoundState.TOO_LARGE
        assert bounded_verdict(verdict, now) == verdict

    def test_without_a_limit_nobody_can_tell(self) -> None:
        now = self.watched(600, verdict=FILLS._replace(headroom_eaten=None))
        assert now.state is None
        assert bounded_verdict(FILLS, now) == FILLS

    def test_growth_beyond_the_end_refutes_it_for_good(self) -> None:
        now = self.watched(1000, 1140, 900)
        assert now.state is BoundState.REFUTED
        assert bounded_verdict(FILLS, now) == FILLS

    def test_a_margin_beyond_the_end_is_no_refutation(self) -> None:
        now = self.watched(1000, 1125)
        assert now.holds

    def test_bound_watch_is_not_refuted_by_memory_of_a_single_step(self) -> None:
        watch = BoundWatch(bound())
        for step in range(71, 120):
            for level in (700, 1500, 1600):  # at its end, and within the next
                now = watch.update(step=step, allocated_bytes=level * MIB, verdict=FILLS)
        assert now.holds

    @pytest.mark.parametrize(
        "verdict",
        [
            FILLS._replace(signal=Signal.RESERVED),
            FILLS._replace(onset_step=71),
        ],
        ids=["fragmentation", "another growth"],
    )
    def test_bound_watch_leaves_unrelated_growth_unchanged(self, verdict: Verdict) -> None:
        now = self.watched(600, verdict=verdict)
        assert now.state is BoundState.UNRELATED
        assert bounded_verdict(verdict, now) == verdict

    def near_the_cap(self, spare: int, *, noise: int = 0) -> list[BoundState | None]:
        """States while a cache fills from 500 MiB to its end at 1,100, ``spare`` MiB below the cap, and stays full."""
        watch, states = BoundWatch(bound(state=None)), []
        for step in range(71, 300):
            level = min(500 + (step - 70) * 4, 1100) + noise * (step % 3)
            gained, free = level - 220, max(1100 + spare - level, 0)
            verdict = FILLS._replace(grown_bytes=gained * MIB, headroom_eaten=gained / (gained + free))
            states.append(watch.update(step=step, allocated_bytes=level * MIB, verdict=verdict).state)
        return states

    @pytest.mark.parametrize("noise", [0, 8])
    @pytest.mark.parametrize("spare", [20, 50, 170])
    def test_a_cache_that_ends_just_below_the_cap_is_no_danger_at_any_step(self, spare: int, noise: int) -> None:
        assert set(self.near_the_cap(spare, noise=noise)) == {BoundState.HOLDS}

    @pytest.mark.parametrize("noise", [0, 8, 30])
    @pytest.mark.parametrize("spare", range(-40, 41, 10))
    def test_its_state_changes_once_at_most_however_near_the_cap_it_ends(self, spare: int, noise: int) -> None:
        states = self.near_the_cap(spare, noise=noise)
        assert sum(before is not after for before, after in pairwise(states)) <= 1

    def test_bound_beyond_the_cap_is_too_large_from_the_first_reading(self) -> None:
        assert set(self.near_the_cap(-10)) == {BoundState.TOO_LARGE}

    def test_memory_beyond_the_likely_end_is_held_against_the_largest(self) -> None:
        watch = BoundWatch(bound(left_bytes=Band(600 * MIB, 600 * MIB, 1200 * MIB)))
        for step in range(71, 90):
            verdict = FILLS._replace(grown_bytes=900 * MIB, headroom_eaten=0.75)  # 300 MiB are free
            now = watch.update(step=step, allocated_bytes=1170 * MIB, verdict=verdict)
        assert now.state is BoundState.TOO_LARGE

    def test_memory_a_little_beyond_the_likely_end_is_not(self) -> None:
        """Thirty items tell how large hundreds are to a few percent."""
        watch = BoundWatch(bound(left_bytes=Band(600 * MIB, 600 * MIB, 1200 * MIB)))
        for step in range(71, 90):
            verdict = FILLS._replace(grown_bytes=900 * MIB, headroom_eaten=0.75)
            now = watch.update(step=step, allocated_bytes=1150 * MIB, verdict=verdict)
        assert now.holds

    def test_a_cache_that_was_emptied_is_judged_anew_when_the_detector_is(self) -> None:
        """Until then its verdict is of the cache when it was full, to 1,100 MiB of 1,500."""
        watch, full = BoundWatch(bound()), FILLS._replace(grown_bytes=880 * MIB, headroom_eaten=880 / 1280)
        for step in range(71, 120):
            now = watch.update(step=step, allocated_bytes=(1100 if step < 90 else 30) * MIB, verdict=full)
            assert now.holds
        small = FILLS._replace(grown_bytes=30 * MIB, headroom_eaten=30 / 330)
        for step in range(120, 140):
            now = watch.update(step=step, allocated_bytes=60 * MIB, verdict=small)
        assert now.state is BoundState.TOO_LARGE

    def test_growth_beyond_the_end_is_dangerous_at_once_where_little_is_left(self) -> None:
        watch = BoundWatch(bound())
        for step in (71, 72, 73):
            verdict = FILLS._replace(grown_bytes=900 * MIB, headroom_eaten=0.98)
            now = watch.update(step=step, allocated_bytes=1140 * MIB, verdict=verdict)
        assert now.state is BoundState.REFUTED


def dangerous(state: BoundState | None) -> RankSummary:
    verdict = LEAK._replace(severity=Severity.CRITICAL, signal=Signal.ALLOCATED)
    now = None if state is None else bound(state=state)
    return rank_summary(1, verdict=bounded_verdict(verdict, now), bound=now)


class TestIncidents:
    @pytest.mark.parametrize("least", [Severity.CRITICAL, Severity.WARNING, Severity.NOTE])
    def test_growth_that_ends_opens_none_at_any_severity(self, least: Severity) -> None:
        watch = Watch(IncidentRules(min_severity=least))
        assert watch.see(job(dangerous(BoundState.HOLDS)), for_s=300) == []

    @pytest.mark.parametrize("state", [BoundState.TOO_LARGE, BoundState.REFUTED, BoundState.UNRELATED, None])
    def test_any_other_does(self, state: BoundState | None) -> None:
        assert Watch().see(job(dangerous(state))) == ["opened"]

    def test_open_incident_closes_once_its_bound_is_known_to_hold(self) -> None:
        watch = Watch()
        watch.see(job(dangerous(None)))
        assert watch.see(job(dangerous(BoundState.HOLDS)), for_s=200) == ["recovering", "closed"]

    def test_an_incident_tells_when_the_bound_is_refuted(self) -> None:
        tracker, now_s = IncidentTracker((), next_number=1), 1_800_000_000.0
        found = news_of(evidence(bound=bound(state=BoundState.HOLDS)))
        view = job(dangerous(BoundState.REFUTED))
        [opened] = tracker.update([view], now_s=now_s, evidence={view.key: [found]})
        assert opened.incident.state is IncidentState.OPEN
        [brief] = opened.incident.evidence
        assert "something else grows" in " ".join(brief_sentences(brief))


WORKSPACE = 32 * MIB


class TestWorkspaces:
    def test_grown_workspaces_on_new_streams_are_bounded_by_the_stream_pool(self) -> None:
        early = [(WORKSPACE, stream) for stream in range(5)]
        late = [(WORKSPACE, stream) for stream in range(11)]
        assert grown_workspaces(early, late) == Workspaces(WORKSPACE, 11, 11, 6 * WORKSPACE, 33)

    def test_two_handles_on_each_stream_are_twice_as_many(self) -> None:
        late = [(WORKSPACE, stream) for stream in range(1, 7) for _ in range(2)]
        found = grown_workspaces(late[:4], late)
        assert found is not None
        assert (found.blocks, found.streams, found.most_blocks) == (12, 6, 64)

    @pytest.mark.parametrize(
        "late",
        [
            [(WORKSPACE, 0)] * 12,
            [(WORKSPACE, 1)] * 6 + [(WORKSPACE, stream) for stream in range(2, 6)],
            [(WORKSPACE + 512, stream) for stream in range(12)],
            [(WORKSPACE, stream) for stream in range(40)],
        ],
        ids=["one stream", "many on one", "another size", "more streams than the pool has"],
    )
    def test_other_blocks_are_none(self, late: list[tuple[int, int]]) -> None:
        assert grown_workspaces([], late) is None

    def test_the_cause_and_its_end_are_named(self) -> None:
        found = Workspaces(WORKSPACE, 11, 11, 6 * WORKSPACE, 33)
        native = Holder(HolderKind.NATIVE, "no Python object found refers to 6 blocks", 6 * WORKSPACE, 6)
        case = filling(
            growth=(StackGrowth(6 * WORKSPACE, 6, (LINE,), LINE, WORKSPACE),), grown_bytes=6 * WORKSPACE,
            search=HolderSearch((native,), 6 * WORKSPACE), workspaces=found,
        )  # fmt: skip
        said = name_cause(case)
        assert (said.cause, said.confidence) == (EvidenceCause.CUBLAS_WORKSPACES, Confidence.NAMED)
        ends = find_bound(case)
        assert ends is not None
        assert bound_words(ends) == (
            "PyTorch's stream pool (a workspace of cuBLAS each) fills, and ends at about 1.2 GiB (11 of 33 workspaces)"
        )
        assert ends == GrowthBound(
            "PyTorch's stream pool (a workspace of cuBLAS each)", "cublas", 11, 33, 70, 500 * MIB,
            Band(*[22.0 * WORKSPACE] * 3), BoundState.HOLDS,
        )  # fmt: skip
        assert GIB < 500 * MIB + 22 * WORKSPACE
