from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import job_view, rank_summary
from tidegauge.core.oom import (
    RULES,
    OomKind,
    OomVerdict,
    explain_case,
    explain_oom,
    explanation_for,
    usable_bytes_of,
)
from tidegauge.core.oom.case import OomCase
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, LeakState, Severity, Signal, Verdict

MIB = 1 << 20
GIB = 1 << 30
TOTAL = 80 * GIB
DOCS = Path(__file__).parents[3] / "docs"


def growth(signal: Signal, grown_bytes: int, state: LeakState = LeakState.LEAK) -> Verdict:
    return Verdict(state, Severity.CRITICAL, signal, onset_step=100, grown_bytes=grown_bytes)


@dataclass(frozen=True)
class Moment:
    """An OOM on an 80 GiB card with the figures that a test names; the rest is ordinary."""

    wanted: int = 2 * GIB
    free: int = 1 * GIB
    limit: int = TOTAL
    allocated: int = 77 * GIB
    reserved: int = 78 * GIB
    step: int = 1100
    verdict: Verdict = OK
    nontorch: int | None = 1 * GIB
    others: int | None = 0
    cap: float | None = None
    usable: int | None = TOTAL
    conf: str | None = None
    private: int = 0
    largest: int | None = None

    def explained(self) -> OomVerdict:
        oom = OomRecord(1e9, self.step, self.wanted, self.free, self.limit, self.allocated, self.reserved, self.private)
        return explain_oom(
            oom, verdict=self.verdict, cap_fraction=self.cap, usable_bytes=self.usable, nontorch_bytes=self.nontorch,
            others_bytes=self.others, alloc_conf=self.conf, largest_free_bytes=self.largest,
        )  # fmt: skip


CAPPED = Moment(limit=20 * GIB, reserved=19 * GIB, allocated=19 * GIB, free=60 * GIB, cap=0.25)
GRAPHS = Moment(allocated=74 * GIB, private=3 * GIB, verdict=growth(Signal.RESERVED, 4 * GIB))
"""CUDA graphs, each recorded with a pool of its own."""


@pytest.mark.parametrize(
    ("moment", "kind", "retry"),
    [
        pytest.param(CAPPED, OomKind.CAP, False, id="the cap, with a card that had room"),
        pytest.param(replace(CAPPED, usable=None), OomKind.CAP, False, id="a cap on a card of unknown size"),
        pytest.param(replace(CAPPED, cap=None), OomKind.CAP, False, id="a cap that the job set itself"),
        pytest.param(replace(CAPPED, free=1 * GIB, others=60 * GIB), OomKind.NEIGHBOUR, True,
                     id="a cap, but the card had no room either"),
        pytest.param(replace(CAPPED, verdict=growth(Signal.ALLOCATED, 5 * GIB)), OomKind.LEAK, True,
                     id="a leak that met the cap"),
        pytest.param(replace(CAPPED, verdict=growth(Signal.ALLOCATED, 512)), OomKind.CAP, False,
                     id="a leak of next to nothing that met the cap"),
        pytest.param(replace(CAPPED, verdict=growth(Signal.NONTORCH, 5 * GIB)), OomKind.CAP, False,
                     id="growth outside the allocator, which no cap counts"),
        pytest.param(replace(CAPPED, allocated=16 * GIB), OomKind.FRAGMENTATION, True, id="pieces under a cap"),
        pytest.param(Moment(verdict=growth(Signal.ALLOCATED, 1 * GIB)), OomKind.LEAK, True, id="a leak"),
        pytest.param(Moment(verdict=growth(Signal.ALLOCATED, 1 * GIB - 1)), OomKind.ALLOCATED, False,
                     id="a leak that is not to blame"),
        pytest.param(Moment(verdict=growth(Signal.ALLOCATED, 9 * GIB, LeakState.SUSPECTED)), OomKind.ALLOCATED, False,
                     id="a suspicion accuses nobody"),
        pytest.param(Moment(verdict=growth(Signal.NONTORCH, 8 * GIB), nontorch=10 * GIB, reserved=69 * GIB,
                            allocated=69 * GIB), OomKind.OUTSIDE_ALLOCATOR, True, id="communicators that grow"),
        pytest.param(Moment(nontorch=50 * GIB, reserved=29 * GIB, allocated=29 * GIB), OomKind.OUTSIDE_ALLOCATOR,
                     False, id="another framework in the process"),
        pytest.param(Moment(allocated=70 * GIB), OomKind.FRAGMENTATION, True, id="pieces"),
        pytest.param(Moment(allocated=70 * GIB, conf="expandable_segments:True"), OomKind.FRAGMENTATION, False,
                     id="pieces in spite of expandable segments"),
        pytest.param(Moment(verdict=growth(Signal.RESERVED, 4 * GIB)), OomKind.FRAGMENTATION, True,
                     id="fragmentation that grew"),
        pytest.param(Moment(reserved=40 * GIB, allocated=40 * GIB, others=38 * GIB), OomKind.NEIGHBOUR, True,
                     id="neighbours"),
        pytest.param(Moment(free=3 * GIB), OomKind.ENOUGH_FREE, None, id="enough free"),
        pytest.param(Moment(free=3 * GIB, allocated=70 * GIB), OomKind.ENOUGH_FREE, None, id="enough free, and pieces"),
        pytest.param(Moment(free=3 * GIB, private=1 * GIB), OomKind.ENOUGH_FREE, None,
                     id="enough free, and private pools"),
        pytest.param(Moment(wanted=90 * GIB, free=95 * GIB, limit=100 * GIB, usable=None, allocated=0, reserved=0),
                     OomKind.ENOUGH_FREE, None, id="enough free for a large request"),
        pytest.param(Moment(wanted=20 * MIB, free=200 * MIB, allocated=78 * GIB), OomKind.ALLOCATED, False,
                     id="the last 200 MiB"),
        pytest.param(Moment(wanted=20 * MIB, free=600 * MIB, allocated=78 * GIB), OomKind.ENOUGH_FREE, None,
                     id="more than the last 512 MiB"),
        pytest.param(Moment(reserved=40 * GIB, allocated=37 * GIB, others=38 * GIB), OomKind.NEIGHBOUR, True,
                     id="neighbours that dwarf the pieces"),
        pytest.param(Moment(reserved=60 * GIB, allocated=40 * GIB, others=18 * GIB), OomKind.FRAGMENTATION, True,
                     id="pieces that are larger than what neighbours hold"),
        pytest.param(Moment(step=0), OomKind.ALLOCATED, False, id="the first step"),
        pytest.param(Moment(), OomKind.ALLOCATED, False, id="a step that needs more"),
        pytest.param(Moment(wanted=90 * GIB, reserved=10 * GIB, allocated=10 * GIB, free=69 * GIB,
                            verdict=growth(Signal.ALLOCATED, 60 * GIB)), OomKind.TOO_BIG, False,
                     id="a request larger than the card"),
        pytest.param(Moment(nontorch=None, others=None, usable=None), OomKind.ALLOCATED, False,
                     id="nothing else known"),
        pytest.param(Moment(nontorch=None, others=None, allocated=30 * GIB, reserved=30 * GIB),
                     OomKind.OUTSIDE_ALLOCATOR, False, id="taken by who knows whom"),
        pytest.param(Moment(private=3 * GIB, allocated=75 * GIB), OomKind.PRIVATE_POOLS, False,
                     id="free in private pools"),
        pytest.param(Moment(private=1 * GIB, allocated=77 * GIB), OomKind.PRIVATE_POOLS, False,
                     id="free in private pools and on the GPU, together"),
        pytest.param(Moment(private=30 * GIB, allocated=44 * GIB), OomKind.PRIVATE_POOLS, False,
                     id="pieces, and far more in private pools"),
        pytest.param(Moment(private=GIB // 2, allocated=77 * GIB), OomKind.ALLOCATED, False,
                     id="too little free in private pools"),
        pytest.param(GRAPHS, OomKind.PRIVATE_POOLS, True, id="private pools that grew"),
        pytest.param(replace(GRAPHS, conf="expandable_segments:True"), OomKind.PRIVATE_POOLS, True,
                     id="private pools that grew, with expandable segments"),
        pytest.param(replace(GRAPHS, allocated=60 * GIB), OomKind.PRIVATE_POOLS, True,
                     id="private pools that grew, beside as many pieces as were asked for"),
        pytest.param(replace(GRAPHS, private=1 * GIB), OomKind.FRAGMENTATION, True,
                     id="fragmentation that grew, beside private pools that did not"),
        pytest.param(Moment(wanted=20 * MIB, free=0, allocated=77 * GIB), OomKind.ALLOCATED, False,
                     id="pieces that are next to nothing of what is reserved"),
    ],
)  # fmt: skip
def test_oom_explanation_gives_its_kind_and_whether_to_retry(moment: Moment, kind: OomKind, retry: bool | None) -> None:
    explained = moment.explained()
    assert (explained.kind, explained.retry) == (kind, retry)
    assert explained.retry_how in explained.sentence
    assert (f"Retry {explained.retry_how}" in explained.sentence) == bool(retry)
    assert (f"A retry may help {explained.retry_how}" in explained.sentence) == (retry is None)


def test_the_owner_is_told_that_the_cap_not_the_card_was_the_reason() -> None:
    assert CAPPED.explained().sentence == (
        "an allocation of 2.0 GiB failed with 19.0 GiB reserved (all of it by live tensors) and 60.0 GiB free on the "
        "GPU: the memory fraction set the limit (20.0 GiB, fraction 0.25), not the GPU. A retry would not help: "
        "under the same cap it would run out again; it needs at least 21.0 GiB (a fraction of 0.2625)."
    )


def test_a_cap_is_named_also_where_something_else_is_to_blame() -> None:
    leak = replace(CAPPED, verdict=growth(Signal.ALLOCATED, 5 * GIB)).explained()
    assert leak.capped
    assert "grew by 5.0 GiB since step 100" in leak.sentence
    assert "The memory fraction set the limit (20.0 GiB, fraction 0.25), not the GPU" in leak.sentence
    assert "would run out again after about 1000 steps" in leak.sentence
    assert "fraction" not in Moment(verdict=growth(Signal.ALLOCATED, 5 * GIB)).explained().sentence


@pytest.mark.parametrize("conf", [None, "expandable_segments:True"])
def test_growth_in_private_pools_is_told_by_their_figure_and_never_cured_by_a_setting(conf: str | None) -> None:
    assert replace(GRAPHS, conf=conf).explained().sentence == (
        "an allocation of 2.0 GiB failed with 78.0 GiB reserved (74.0 GiB by live tensors) and 1.0 GiB free on the "
        "GPU: 3.0 GiB were free in private pools (CUDA graphs, MemPool), out of reach; reserved memory grew by 4.0 GiB "
        "since step 100; without that growth it would have fit. Retry from a checkpoint, but it would run out again "
        "after about 1000 steps unless the graphs share one pool, or the job captures fewer; expandable_segments does "
        "not help."
    )


def test_free_memory_in_private_pools_alone_is_no_reason_to_try_again() -> None:
    assert Moment(private=3 * GIB, allocated=75 * GIB).explained().retry_how == (
        "let graphs share one pool, and drop graphs and pools that are no longer needed; expandable_segments does not "
        "help"
    )


@pytest.mark.parametrize(
    ("moment", "why"),
    [
        (Moment(step=0), "model and batch do not fit, or a program without steps (inference, an evaluation)"),
        (Moment(step=1), "1 step had finished: model and batch do not fit"),
        (Moment(), "needed more than those before it"),
        (Moment(verdict=growth(Signal.ALLOCATED, 1)), "by less than was missing"),
        (Moment(wanted=90 * GIB), "larger than the GPU (80.0 GiB)"),
    ],
)
def test_why_it_was_too_big(moment: Moment, why: str) -> None:
    assert why in moment.explained().sentence


def test_a_text_without_a_cap_is_never_explained_by_one() -> None:
    case = OomCase(16 * GIB, 85 * GIB, 15 * GIB, 2 * GIB, 10 * GIB, usable_bytes=15 * GIB, uncapped=True)
    explained = explain_case(case)
    assert (explained.kind, explained.retry, explained.capped) == (OomKind.ENOUGH_FREE, None, False)
    assert "fraction" not in explained.sentence


@pytest.mark.parametrize(
    ("neighbours", "held"),
    [
        (((4242, 38 * GIB),), "process 4242 (another process, or another rank) held 38.0 GiB of the GPU"),
        (
            ((4242, 30 * GIB), (4343, 8 * GIB)),
            "other processes (or other ranks) held 38.0 GiB of the GPU, the largest is process 4242 with 30.0 GiB",
        ),
    ],
)
def test_neighbours_are_named_where_they_are_listed(neighbours: tuple[tuple[int, int], ...], held: str) -> None:
    case = OomCase(2 * GIB, 0, TOTAL, 40 * GIB, 40 * GIB, others_bytes=38 * GIB, neighbours=neighbours)
    assert held in explain_case(case).sentence


@pytest.mark.parametrize(("total", "contexts"), [(2 * GIB, 1 * GIB), (6 * GIB, 3 * GIB // 2), (80 * GIB, 2 * GIB)])
def test_contexts_of_a_small_gpu_are_worth_a_word_sooner(total: int, contexts: int) -> None:
    assert OomCase(2 * MIB, 0, total, MIB, MIB).contexts_bytes == contexts


def test_an_old_pytorch_is_told_that_the_setting_needs_a_newer_one() -> None:
    pieces = OomCase(2 * GIB, 1 * GIB, TOTAL, 70 * GIB, 78 * GIB, before_2_1=True)
    assert "expandable_segments:True, which needs PyTorch 2.1 or later" in explain_case(pieces).sentence


def test_an_empty_allocator_has_no_tensors_to_speak_of() -> None:
    assert "with 0 B reserved and 3.0 GiB free" in explain_case(OomCase(2 * GIB, 3 * GIB, TOTAL, 0, 0)).sentence


def test_the_largest_piece_is_named_where_it_is_known() -> None:
    pieces = Moment(allocated=70 * GIB, largest=512 * MIB).explained()
    assert "in blocks too small for the request (largest: 512.0 MiB)" in pieces.sentence


def test_a_free_piece_as_large_as_the_request_is_not_called_too_small() -> None:
    pieces = Moment(allocated=70 * GIB, wanted=2 * GIB, largest=2 * GIB).explained()
    assert "largest:" not in pieces.sentence


def test_steps_that_are_not_known_are_not_spoken_of() -> None:
    case = OomCase(2 * GIB, 1 * GIB, TOTAL, 77 * GIB, 78 * GIB, approximate=True)
    explained = explain_case(case)
    assert explained.kind is OomKind.ALLOCATED
    assert "step" not in explained.sentence
    assert explained.sentence.startswith("an allocation of about 2.0 GiB failed with 78.0 GiB reserved")


@pytest.mark.parametrize(
    ("wanted", "allocated", "reserved"),
    [(89_137_664, 878_323_504, 1_096_810_496), (179_178_496, 732_029_872, 1_010_827_264)],
)
def test_ooms_recorded_under_a_cap_on_an_h200_were_pieces(wanted: int, allocated: int, reserved: int) -> None:
    """Two of the OOMs of the recording mixed_cnn under a cap of 1.1 GiB.

    The same workload with expandable_segments:True, recorded with another seed, peaks at 1,061,158,912 bytes reserved.
    """
    oom = OomRecord(1e9, 43, wanted, 143_556_214_784, 1_181_116_006, allocated, reserved)
    explained = explain_oom(oom, verdict=OK, usable_bytes=150_109_880_320, nontorch_bytes=742 * MIB, others_bytes=0)
    assert (explained.kind, explained.retry, explained.capped) == (OomKind.FRAGMENTATION, True, True)
    assert "expandable_segments:True" in explained.retry_how


counts = st.integers(0, 300 * GIB)
unknown_or_count = st.none() | counts
verdicts = st.builds(
    growth, st.sampled_from(Signal), counts, st.sampled_from(LeakState)
)  # fmt: skip


@given(
    st.builds(
        Moment, wanted=counts, free=counts, limit=counts, allocated=counts, reserved=counts,
        step=st.integers(0, 10**9), verdict=verdicts, nontorch=unknown_or_count, others=unknown_or_count,
        usable=unknown_or_count, cap=st.none() | st.floats(0.001, 0.999), private=counts, largest=unknown_or_count,
    )
)  # fmt: skip
def test_any_figures_get_an_answer(moment: Moment) -> None:
    explained = moment.explained()
    assert explained.sentence.endswith(f"{explained.retry_how}.")
    if explained.kind is OomKind.CAP:
        assert explained.capped
    if explained.capped:
        assert "fraction" in explained.sentence or explained.kind is OomKind.TOO_BIG


def test_the_sentence_of_a_rank_works_out_what_neighbours_held() -> None:
    oom = OomRecord(1e9, 412, 2 * GIB, 1 * GIB, TOTAL, 40 * GIB, 40 * GIB)
    rank = rank_summary(1, last_oom=oom, limit_bytes=TOTAL, nontorch_bytes=1 * GIB)
    sentence = explanation_for(rank, job_view(ranks=(rank_summary(0), rank)))
    assert sentence.startswith("rank 1, step 412: an allocation of 2.0 GiB failed")
    assert "other processes (or other ranks) held 38.0 GiB" in sentence


def test_the_service_knows_what_was_free_in_private_pools() -> None:
    oom = OomRecord(1e9, 1100, 2 * GIB, 1 * GIB, TOTAL, 74 * GIB, 78 * GIB, private_free_bytes=3 * GIB)
    rank = rank_summary(1, last_oom=oom, limit_bytes=TOTAL, verdict=growth(Signal.RESERVED, 4 * GIB))
    sentence = explanation_for(rank, job_view(ranks=(rank,)))
    assert "3.0 GiB were free in private pools (CUDA graphs, MemPool)" in sentence
    assert "with the allocator setting" not in sentence


def test_other_ranks_of_the_job_that_ran_out_too_are_counted() -> None:
    oom = OomRecord(1e9, 412, 2 * GIB, 1 * GIB, TOTAL, 77 * GIB, 78 * GIB)
    ranks = tuple(rank_summary(rank, last_oom=oom if rank else None) for rank in range(4))
    assert explanation_for(ranks[1], job_view(ranks=ranks)).startswith("rank 1 (and 2 more), step 412: ")


def test_a_rank_without_figures_is_said_to_have_none() -> None:
    assert explanation_for(rank_summary(1), job_view()) == "rank 1 ran out of memory; no figures were recorded."


def test_the_size_of_the_card_is_known_in_spite_of_a_cap() -> None:
    capped = rank_summary(0, limit_bytes=int(0.2625 * TOTAL), cap_fraction=0.2625)
    assert usable_bytes_of(capped) == pytest.approx(TOTAL, abs=8)
    assert usable_bytes_of(rank_summary(0, limit_bytes=TOTAL)) == TOTAL
    assert usable_bytes_of(rank_summary(0, limit_bytes=None, cap_fraction=0.5)) is None


def test_a_cap_that_leaves_nothing_tells_nothing_of_the_card() -> None:
    # A rank may claim any fraction, and one claim must not end the look at all jobs.
    oom = OomRecord(1e9, 1, 0, 0, 1, 2 * GIB, GIB)
    capped = rank_summary(0, limit_bytes=0, cap_fraction=1e-12, nontorch_bytes=0, last_oom=oom)
    assert usable_bytes_of(capped) is None
    assert "under the same cap it would run out again" in explanation_for(capped, job_view(ranks=(capped,)))


def test_the_page_shows_the_table() -> None:
    lines = (DOCS / "oom.md").read_text().splitlines()
    rows = [line.split(" | ")[1:3] for line in lines if line.startswith("| ") and line[2].isdigit()]
    assert rows == [[f"`{rule.kind.value}`", rule.when] for rule in RULES]
