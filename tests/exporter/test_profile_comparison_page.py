"""The page that compares two memory profiles: both over time, the gap by category, module, line and phase."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.comparison import compare_profiles
from tidegauge.core.profile.step_profile import ModuleMemory, StepProfile
from tidegauge_exporter.reports.profile_comparison_page import render_comparison

SNAPSHOTS = Path(__file__).parents[1] / "data" / "snapshots"
MIB = 1 << 20


@cache
def profile(name: str) -> StepProfile:
    return profile_of(open_trace(SNAPSHOTS / f"{name}.late.snap.zst"))


def rendered(before: StepProfile, after: StepProfile) -> str:
    compared = compare_profiles(before, after)
    return render_comparison(before, after, compared, subjects=("main.pickle", "branch.pickle"), made_unix_s=1.8e9)


def with_layer(name: str, held_bytes: int, *, path: str = "Net.layer") -> StepProfile:
    held = {Category.ACTIVATIONS: held_bytes}
    return replace(profile(name), modules=(ModuleMemory("Net", {}, held), ModuleMemory(path, held, held)))


def test_the_page_tells_the_gap_and_both_files() -> None:
    page = rendered(profile("steady_lm"), profile("curriculum"))
    assert "<h1>The peak is 228.2 MiB higher (+84.0%): 271.5 MiB before, 499.7 MiB after.</h1>" in page
    for words in ("main.pickle", "branch.pickle", "+164.4 MiB", "train/scenarios.py:21 in forward", "+229.4 MiB"):
        assert words in page
    assert "By module" not in page


def test_both_curves_share_one_axis() -> None:
    page = rendered(profile("steady_lm"), profile("curriculum"))
    curves = re.findall(r'<polyline class="curve (calm|warn)" points="([^"]+)">', page)
    (before, lower), (after, higher) = curves
    highest = [min(float(point.split(",")[1]) for point in points.split()) for points in (lower, higher)]
    assert (before, after) == ("calm", "warn")
    bottom = 400 - 42
    assert (bottom - highest[1]) / (bottom - highest[0]) == pytest.approx(499.7 / 271.5, rel=0.01)


def test_the_gap_is_told_by_module_where_both_have_modules() -> None:
    page = rendered(with_layer("steady_lm", 10 * MIB), with_layer("curriculum", 90 * MIB))
    assert "By module" in page
    row = re.search(r"Net\.layer</span></td>(.*?)</tr>", page)
    assert row is not None
    assert re.findall(r">([^<>]+)</td>", row[1]) == ["10.0 MiB", "90.0 MiB", "+80.0 MiB"]
    assert "(no module)" in page


def test_names_of_a_snapshot_stay_text() -> None:
    hostile = CodeLine("<script>alert(1)</script>.py", 1, "</table><img src=x>")
    before = with_layer("steady_lm", MIB, path="Net.<img src=x>")
    after = replace(with_layer("curriculum", MIB), lines=(profile("curriculum").lines[0]._replace(line=hostile),))
    page = rendered(before, after)
    assert "<script" not in page
    assert "<img" not in page


def test_two_recordings_without_anything_have_a_page() -> None:
    timeline = replace(profile("steady_lm")).timeline._replace(by_category={})
    empty = replace(profile("steady_lm"), timeline=timeline, lines=())
    assert "The peak is the same" in rendered(empty, empty)
