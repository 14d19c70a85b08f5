"""The page of a memory profile: its areas add up, its words come from the profile, hostile names stay text."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.advice import AdvisedMeasure, BatchRoom, Measure, StepAdvice
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import ModuleMemory, StepProfile
from tidegauge_exporter.reports.html_page import style_sheet
from tidegauge_exporter.reports.profile_page import MAX_LINES, render_profile

MIB = 1 << 20
DATA = Path(__file__).parents[1] / "data"


@cache
def profile(name: str = "snapshots/steady_lm.late.snap.zst") -> StepProfile:
    return profile_of(open_trace(DATA / name))


def rendered(one: StepProfile) -> str:
    return render_profile(one, subject="rank-0.snap.zst", made_unix_s=1.8e9)


def test_the_page_says_how_high_the_peak_is_and_what_it_is_made_of() -> None:
    page = rendered(profile())
    assert "<h1>271.5 MiB at the peak, mostly activations (30%) and workspaces (24%).</h1>" in page
    assert "271.5 MiB allocated in the forward pass" in page
    assert "rank-0.snap.zst" in page
    for words in ("optimizer state", "train/scenarios.py:21 in forward", "called from train/scenarios.py:32"):
        assert words in page


def test_areas_lie_on_each_other_the_highest_one_behind() -> None:
    page = rendered(profile())
    areas = re.findall(r'<polygon class="area (of-[a-z-]+)" points="([^"]+)">', page)
    lowest_y = [min(float(point.split(",")[1]) for point in points.split()) for _, points in areas]
    assert [name for name, _ in areas][-1] == "of-parameters"
    assert lowest_y == sorted(lowest_y)


@pytest.mark.parametrize("category", Category)
def test_each_category_has_a_colour(category: Category) -> None:
    assert f".of-{category.name.lower().replace('_', '-')} {{ fill:" in style_sheet()


def test_each_backward_pass_is_shaded() -> None:
    assert rendered(profile()).count(">backward</text>") == 4


def test_the_page_has_every_measure_with_its_price() -> None:
    advice = StepAdvice(
        300 * MIB,
        320 * MIB,
        (
            AdvisedMeasure(Measure.CHECKPOINTING, 200 * MIB, 100 * MIB, "Checkpoint <b>", "twice", "if <i>"),
            AdvisedMeasure(Measure.ALLOCATOR_SETTINGS, 310 * MIB, 10 * MIB, "Set", "calls", is_reserved=True),
        ),
        BatchRoom(600 * MIB, 1.5, 2.0, 100 * MIB),
    )
    page = render_profile(profile(), advice, subject="a", made_unix_s=1.8e9)
    for words in (
        "What would help",
        "100.0 MiB",
        "Checkpoint &lt;b&gt;<small>if &lt;i&gt;</small>",
        "310.0 MiB reserved",
    ):
        assert words in page
    assert "The batch can be 1.5 times as large" in page


def test_names_of_a_snapshot_stay_text() -> None:
    hostile = CodeLine("<script>alert(1)</script>.py", 1, "</table><img src=x>")
    lines = tuple(line._replace(line=hostile, caller=hostile) for line in profile().lines)
    modules = (ModuleMemory("<script>alert(1)</script>", {}, {Category.ACTIVATIONS: 9}),)
    page = rendered(replace(profile(), lines=lines, modules=modules))
    assert page.count("<script") == 1  # the page's own
    assert "<script>alert" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_a_recording_without_stacks_has_a_page_that_says_so() -> None:
    page = rendered(profile("allocator/mixed_cnn_s1_c0.npz"))
    assert "The recording has no stacks" in page
    assert "Highest in each phase" not in page


def test_a_long_table_says_how_many_lines_are_not_shown() -> None:
    many = profile().lines * 10
    page = rendered(replace(profile(), lines=many))
    assert f"{len(many) - MAX_LINES:,} more lines not shown." in page


def test_control_characters_of_names_do_not_reach_the_page() -> None:
    hostile = CodeLine("a\x1b[31m\x00\u202e.py", 1, "f\x07")
    page = rendered(replace(profile(), lines=tuple(line._replace(line=hostile) for line in profile().lines)))
    assert not set(page) & set("\x1b\x00\x07\u202e")


def by_module() -> StepProfile:
    """30 of 82 MiB of activations, and all parameters, in two layers of one model."""
    mib = 1 << 20
    held = {Category.ACTIVATIONS: 10 * mib, Category.PARAMETERS: 22 * mib}
    modules = (
        ModuleMemory("Net", {}, {Category.ACTIVATIONS: 30 * mib, Category.PARAMETERS: 22 * mib}),
        ModuleMemory("Net.body", held, held),
        ModuleMemory("Net.head", {Category.ACTIVATIONS: 20 * mib}, {Category.ACTIVATIONS: 20 * mib}),
    )
    return replace(profile(), modules=modules)


def test_the_icicle_has_each_module_as_wide_as_its_bytes_and_what_belongs_to_none() -> None:
    page = rendered(by_module())
    cells = re.findall(r'<g class="cell ([^"]*)" data-x="([^"]+)" data-width="([^"]+)" data-row="(\d+)"[^>]*>', page)
    rows = [[(css, float(width)) for css, _, width, row in cells if int(row) == number] for number in range(4)]
    mib = rows[0][0][1] / (271.5 - 4.25)
    assert [(css, round(width / mib)) for css, width in rows[1]] == [("module", 52), ("rest", 215)]
    assert [(css, round(width / mib)) for css, width in rows[2][:2]] == [("module", 32), ("module", 20)]
    assert [css for css, _ in rows[3]] == ["area of-parameters", "area of-activations", "area of-activations"]
    assert "Net.body: 32.0 MiB (12.0%): parameters 22.0 MiB, activations 10.0 MiB" in page
    assert "215.2 MiB belong to no module" in page


def test_a_recording_without_modules_has_no_icicle() -> None:
    page = rendered(profile())
    assert '<svg class="icicle"' not in page
    assert "by module" not in page


def test_a_profile_says_why_it_has_no_modules() -> None:
    page = rendered(replace(profile(), modules_missing="nobody knows them"))
    assert "Memory that modules allocated is not told by module: nobody knows them." in page
