"""Unequal ranks of a job: which one, by how much, and why; whatever their order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_profiles import rank_profile, steady_profile
from sample_views import MIB
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.ids import DeviceUuid
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.imbalance import (
    MIN_EXCESS_BYTES,
    MIN_EXCESS_SHARE,
    ImbalanceCause,
    ImbalanceKind,
    Outside,
    cause_of,
    imbalance_of,
)
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.profile.step_profile import ModuleMemory, ProfileLine, StepProfile

EVEN = {
    Category.PARAMETERS: 100 * MIB,
    Category.GRADIENTS: 100 * MIB,
    Category.OPTIMIZER_STATE: 200 * MIB,
    Category.ACTIVATIONS: 300 * MIB,
}
FORWARD, HEAD = CodeLine("train.py", 21, "forward"), CodeLine("train.py", 48, "loss_of")


def line(category: Category, mib: int, *, blocks: int = 4, at: CodeLine | None = FORWARD) -> ProfileLine:
    return ProfileLine(mib * MIB, blocks, category, StepPhase.FORWARD, at, None)


def whole(
    held: Mapping[Category, int], lines: tuple[ProfileLine, ...] = (), modules: tuple[ModuleMemory, ...] = ()
) -> StepProfile:
    peak = steady_profile().peak._replace(allocated_bytes=sum(held.values()), by_category=dict(held))
    return replace(steady_profile(), peak=peak, lines=lines, modules=modules)


def of_rank(rank: int, held: Mapping[Category, int], **changes: Any) -> RankProfile:
    return rank_profile(rank, allocated_bytes=sum(held.values()), by_category=held, **changes)


def more(**mib: int) -> dict[Category, int]:
    """An even rank with so much more of each category."""
    grown = {Category[name.upper()]: size * MIB for name, size in mib.items()}
    return {category: EVEN.get(category, 0) + grown.get(category, 0) for category in {**EVEN, **grown}}


def cause(
    held: Mapping[Category, int], worst: StepProfile | None = None, peer: StepProfile | None = None
) -> ImbalanceCause:
    found = imbalance_of([of_rank(0, held), of_rank(1, EVEN), of_rank(2, EVEN)])
    assert found is not None
    assert (found.rank, found.peer) == (0, 1)
    return cause_of(found, worst or whole(held), peer or whole(EVEN))


def test_a_rank_with_an_extra_copy_of_the_model_is_told() -> None:
    for held in (more(parameters=100), more(other=101), more(unknown=99)):
        assert cause(held).kind is ImbalanceKind.MODEL_COPY
    assert cause(more(parameters=200)).times == 2


def test_a_stage_with_more_of_the_model_names_the_modules_that_it_has() -> None:
    held = more(parameters=50, gradients=50, optimizer_state=100, activations=20)
    embed = ModuleMemory("embed", {Category.PARAMETERS: 200 * MIB}, {Category.PARAMETERS: 200 * MIB})
    block = ModuleMemory("block", {Category.PARAMETERS: 9 * MIB}, {Category.PARAMETERS: 9 * MIB})
    found = cause(held, whole(held, modules=(embed, block)), whole(EVEN, modules=(block,)))
    assert (found.kind, found.part, found.bytes) == (ImbalanceKind.MODEL_PART, Category.OPTIMIZER_STATE, 200 * MIB)
    assert [(one.path, one.grown_bytes) for one in found.modules] == [("embed", 200 * MIB)]


def test_state_of_as_many_parameters_is_uneven_sharding() -> None:
    assert cause(more(optimizer_state=120)).kind is ImbalanceKind.OPTIMIZER_STATE


def test_larger_blocks_of_the_same_lines_are_a_larger_batch() -> None:
    held = more(activations=150)
    worst = whole(held, (line(Category.ACTIVATIONS, 450),))
    found = cause(held, worst, whole(EVEN, (line(Category.ACTIVATIONS, 300),)))
    assert (found.kind, found.times) == (ImbalanceKind.BATCH, 1.5)


def test_a_line_that_the_peer_does_not_run_is_named() -> None:
    held = more(activations=150)
    both = line(Category.ACTIVATIONS, 300)
    worst = whole(held, (both, line(Category.ACTIVATIONS, 150, blocks=1, at=HEAD)))
    found = cause(held, worst, whole(EVEN, (both,)))
    assert found.kind is ImbalanceKind.LINE
    assert found.line is not None
    assert found.line.line == HEAD


def test_what_no_line_tells_is_a_category() -> None:
    assert cause(more(communication=90)).kind is ImbalanceKind.CATEGORY


@pytest.mark.parametrize(
    ("field", "part", "kind"),
    [
        ("process_outside_bytes", Outside.PROCESS, ImbalanceKind.OTHER_LIBRARY),
        ("other_processes_bytes", Outside.OTHERS, ImbalanceKind.OTHER_PROCESS),
    ],
)
def test_memory_outside_pytorch_is_told_if_it_is_known_of_all_ranks(
    field: str, part: Outside, kind: ImbalanceKind
) -> None:
    known = {"process_outside_bytes": 500 * MIB, "other_processes_bytes": 0}
    uneven = {**known, field: 900 * MIB}
    found = imbalance_of([of_rank(0, EVEN, **known), of_rank(1, EVEN, **uneven)])
    assert found is not None
    assert (found.rank, found.worst_bytes - found.median_bytes) == (1, found.grown_bytes(part))
    assert cause_of(found, whole(EVEN), whole(EVEN)).kind is kind
    assert imbalance_of([of_rank(0, EVEN), of_rank(1, EVEN, **uneven)]) is None


def test_ranks_on_one_gpu_do_not_differ_by_their_other_processes() -> None:
    """Which are each other, at two moments."""
    known = {"process_outside_bytes": 500 * MIB, "gpu_uuid": "GPU-0"}
    one, other = (of_rank(rank, EVEN, **known, other_processes_bytes=size * MIB) for rank, size in ((0, 0), (1, 900)))
    assert imbalance_of([one, other]) is None
    assert imbalance_of([one, replace(other, gpu_uuid=DeviceUuid("GPU-1"))]) is not None


def test_what_others_hold_on_a_gpu_never_hides_that_the_jobs_own_ranks_are_uneven() -> None:
    beside = {"process_outside_bytes": 500 * MIB, "other_processes_bytes": 2900 * MIB}
    found = imbalance_of(
        [of_rank(0, EVEN, **beside), of_rank(1, more(parameters=66), **{**beside, "other_processes_bytes": 0})]
    )
    assert found is not None
    assert (found.rank, found.excess_bytes) == (1, 66 * MIB)


def test_other_jobs_that_the_service_knows_make_no_rank_uneven() -> None:
    beside = {"process_outside_bytes": 500 * MIB, "other_processes_bytes": 2900 * MIB}
    alone = of_rank(1, EVEN, **{**beside, "other_processes_bytes": 0}, other_jobs_bytes=0)
    assert imbalance_of([of_rank(0, EVEN, **beside, other_jobs_bytes=2900 * MIB), alone]) is None
    found = imbalance_of([of_rank(0, EVEN, **beside, other_jobs_bytes=2000 * MIB), alone])
    assert found is not None
    assert (found.rank, found.grown_bytes(Outside.OTHERS)) == (0, 900 * MIB)


def test_a_rank_without_a_profile_counts_for_nothing() -> None:
    ranks = [of_rank(0, EVEN), of_rank(1, EVEN), of_rank(2, {})]
    assert imbalance_of(ranks) is None
    assert imbalance_of([]) is imbalance_of(ranks[1:]) is None


HELD = st.dictionaries(st.sampled_from(Category), st.integers(0, 1 << 34), max_size=6)
OUTSIDE = st.none() | st.integers(0, 1 << 32)


@st.composite
def jobs(draw: st.DrawFn) -> list[RankProfile]:
    held = draw(st.lists(st.tuples(HELD, OUTSIDE, OUTSIDE), max_size=6))
    return [
        of_rank(rank, by_category, process_outside_bytes=process, other_processes_bytes=others)
        for rank, (by_category, process, others) in enumerate(held)
    ]


@given(jobs(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_changes_nothing(ranks: list[RankProfile], random: object) -> None:
    shuffled = list(ranks)
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis's Random
    found, again = imbalance_of(ranks), imbalance_of(shuffled)
    assert found == again
    if found is not None and again is not None:
        profiles = {one.rank: whole(one.by_category) for one in ranks}
        assert cause_of(found, profiles[found.rank], profiles[found.peer]) == cause_of(
            again, profiles[again.rank], profiles[again.peer]
        )


@given(jobs())
def test_the_parts_add_up_to_the_gap_which_is_above_the_limit(ranks: list[RankProfile]) -> None:
    found = imbalance_of(ranks)
    if found is not None:
        assert sum(one.grown_bytes for one in found.parts) == found.excess_bytes
        assert found.excess_bytes > max(MIN_EXCESS_BYTES, MIN_EXCESS_SHARE * found.median_bytes)
        profiles = {one.rank: whole(one.by_category) for one in ranks}
        assert cause_of(found, profiles[found.rank], profiles[found.peer]).bytes > 0


@given(HELD, OUTSIDE, st.integers(2, 9))
def test_equal_ranks_have_no_cause(held: dict[Category, int], outside: int | None, ranks: int) -> None:
    assert imbalance_of(of_rank(rank, held, process_outside_bytes=outside) for rank in range(ranks)) is None


@given(HELD, st.sampled_from(Category), st.integers(0, MIN_EXCESS_BYTES))
def test_ranks_within_the_limit_are_equal(held: dict[Category, int], category: Category, beyond: int) -> None:
    fuller = {**held, category: held.get(category, 0) + beyond}
    assert imbalance_of([of_rank(0, held), of_rank(1, fuller)]) is None
