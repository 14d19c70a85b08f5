"""Two profiles side by side: the gap of their peaks by category and by line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Optional

from hypothesis import given
from hypothesis import strategies as st

from tidegauge.analysis.profile.words import line_of_change
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.comparison import LineChange, compare_profiles
from tidegauge.core.profile.step_profile import (
    ModuleMemory,
    PhasePeak,
    ProfileLine,
    ProfileMoment,
    StepProfile,
    Timeline,
)

MIB = 1 << 20
BLOCK, HEAD = CodeLine("/a/model.py", 20, "forward"), CodeLine("/a/model.py", 40, "forward")
MOVED = CodeLine("/b/model.py", 23, "forward")


def line(held_bytes: int, where: Optional[CodeLine], category: Category = Category.ACTIVATIONS) -> ProfileLine:
    return ProfileLine(held_bytes, 1, category, StepPhase.FORWARD, where, None)


def profile(lines: Sequence[ProfileLine], phases: Mapping[StepPhase, int] | None = None) -> StepProfile:
    sums: dict[Category, int] = {}
    for one in lines:
        sums[one.category] = sums.get(one.category, 0) + one.held_bytes
    return StepProfile(
        device=0, torch_version=None, events=1, backward_passes=1,
        peak=ProfileMoment(0, StepPhase.FORWARD, sum(sums.values()), sums),
        phases=tuple(PhasePeak(phase, peak_bytes, 0) for phase, peak_bytes in (phases or {}).items()),
        lines=tuple(sorted(lines, key=lambda one: -one.held_bytes)),
        timeline=Timeline((), (), {}), reserved_bytes=0, is_exact=True,
    )  # fmt: skip


def changed(one: LineChange) -> tuple[Optional[CodeLine], int]:
    return one.line, one.grown_bytes


def test_the_line_that_changed_is_told_from_others_of_the_same_name() -> None:
    compared = compare_profiles(
        profile([line(30 * MIB, BLOCK), line(16 * MIB, HEAD)]), profile([line(4 * MIB, BLOCK), line(16 * MIB, HEAD)])
    )
    assert list(map(changed, compared.lines)) == [(BLOCK, -26 * MIB)]
    assert (compared.grown_bytes, round(compared.grown_share, 3)) == (-26 * MIB, -0.565)


def test_a_line_that_moved_in_another_checkout_is_the_same_function() -> None:
    compared = compare_profiles(profile([line(4 * MIB, BLOCK)]), profile([line(6 * MIB, MOVED)]))
    assert list(map(changed, compared.lines)) == [(MOVED, 2 * MIB)]


def test_one_line_has_a_change_for_each_category() -> None:
    before = profile([line(4 * MIB, BLOCK), line(1 * MIB, BLOCK, Category.TEMPORARIES)])
    after = profile([line(5 * MIB, BLOCK), line(3 * MIB, BLOCK, Category.TEMPORARIES)])
    compared = compare_profiles(before, after)
    assert [(one.category, one.grown_bytes) for one in compared.lines] == [
        (Category.TEMPORARIES, 2 * MIB),
        (Category.ACTIVATIONS, 1 * MIB),
    ]


def test_memory_of_autograds_thread_is_told_from_memory_without_a_stack() -> None:
    backward = ProfileLine(4 * MIB, 1, Category.GRADIENTS, StepPhase.BACKWARD, None, None)
    compared = compare_profiles(profile([backward]), profile([line(1 * MIB, None, Category.GRADIENTS)]))
    assert [(line_of_change(one), one.grown_bytes) for one in compared.lines] == [
        ("(autograd)", -4 * MIB),
        ("no stack recorded", 1 * MIB),
    ]


def test_a_phase_that_one_of_them_lacks_is_not_nought() -> None:
    before = profile([], {StepPhase.FORWARD: 3, StepPhase.UNKNOWN: 2})
    after = profile([], {StepPhase.FORWARD: 5, StepPhase.RECOMPUTATION: 4})
    assert [tuple(one) for one in compare_profiles(before, after).phases] == [
        (StepPhase.FORWARD, 3, 5),
        (StepPhase.RECOMPUTATION, None, 4),
    ]


def test_growth_from_nothing_has_no_share() -> None:
    nothing = profile([])
    assert compare_profiles(nothing, nothing).grown_share == 0.0
    assert compare_profiles(nothing, profile([line(1, None)])).grown_share == float("inf")


WHERE = st.sampled_from([None, BLOCK, HEAD, MOVED, CodeLine("C:\\a\\model.py", 20, "forward")])
LINES = st.lists(st.builds(line, st.integers(1, 100), WHERE, st.sampled_from(list(Category))), max_size=12)


@given(LINES, LINES)
def test_categories_and_lines_each_add_up_to_the_gap_of_the_peaks(
    before: list[ProfileLine], after: list[ProfileLine]
) -> None:
    compared = compare_profiles(profile(before), profile(after))
    assert sum(one.grown_bytes for one in compared.categories) == compared.grown_bytes
    assert sum(one.grown_bytes for one in compared.lines) == compared.grown_bytes


def test_modules_that_changed_add_up_to_the_gap_without_rounding() -> None:
    def with_modules(head_bytes: int, body_bytes: int, outside_bytes: int) -> StepProfile:
        modules = [
            ModuleMemory("Net", {}, {Category.ACTIVATIONS: head_bytes + body_bytes}),
            ModuleMemory("Net.head", {Category.ACTIVATIONS: head_bytes}, {Category.ACTIVATIONS: head_bytes}),
            ModuleMemory("Net.body", {Category.ACTIVATIONS: body_bytes}, {Category.ACTIVATIONS: body_bytes}),
        ]
        held = {Category.ACTIVATIONS: head_bytes + body_bytes + outside_bytes, Category.ROUNDING: 3}
        return replace(
            profile([]), peak=ProfileMoment(0, StepPhase.FORWARD, sum(held.values()), held), modules=tuple(modules)
        )

    compared = compare_profiles(with_modules(10, 20, 5), with_modules(10, 50, 4))
    assert [(one.path, one.before_bytes, one.after_bytes) for one in compared.modules] == [
        ("Net.body", 20, 50),
        (None, 5, 4),
    ]
    assert sum(one.grown_bytes for one in compared.modules) == compared.grown_bytes
