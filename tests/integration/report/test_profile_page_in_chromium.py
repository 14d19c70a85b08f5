"""The page of a memory profile in a real browser: its icicle can be enlarged, modules and lines can be searched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from browser import Tab
from tidegauge.analysis.profile.profile import profile_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import ModuleMemory
from tidegauge_exporter.reports.profile_page import render_profile

RECORDED = Path(__file__).parents[2] / "data" / "snapshots" / "steady_lm.late.snap.zst"
MIB = 1 << 20
CELL = "[...document.querySelectorAll('.icicle .cell')].find((one) => one.dataset.path === '{}')"


@pytest.fixture
def profile_tab(browser_tab: Tab, tmp_path: Path) -> Tab:
    layer = {Category.ACTIVATIONS: 10 * MIB}
    modules = (
        ModuleMemory("Net", {}, {Category.ACTIVATIONS: 20 * MIB}),
        ModuleMemory("Net.body", layer, layer),
        ModuleMemory("Net.head", layer, layer),
    )
    page = tmp_path / "profile.html"
    profile = replace(profile_of(open_trace(RECORDED)), modules=modules)
    page.write_text(render_profile(profile, subject="rank 0", made_unix_s=1.8e9), encoding="utf-8")
    browser_tab.screen(width=1180, height=900)
    browser_tab.open(page.as_uri())
    return browser_tab


def test_a_click_enlarges_a_module_and_another_one_goes_back(profile_tab: Tab) -> None:
    def width(path: str) -> float:
        return float(profile_tab.ask(f"{CELL.format(path)}.querySelector('rect').getBoundingClientRect().width"))

    whole, before = width("Net"), width("Net.head")
    profile_tab.ask(f"{CELL.format('Net.head')}.dispatchEvent(new Event('click'))")
    assert width("Net.head") == pytest.approx(width("Net"))
    assert width("Net") > 10 * before
    assert profile_tab.ask(f"getComputedStyle({CELL.format('Net.body')}).display") == "none"
    profile_tab.ask("document.querySelector('.icicle .cell').dispatchEvent(new Event('click'))")
    assert (width("Net"), width("Net.head")) == pytest.approx((whole, before), abs=0.1)  # pixels
    assert profile_tab.complaints() == []


def test_a_search_finds_modules_and_lines(profile_tab: Tab) -> None:
    def search(words: str) -> str:
        field = "document.querySelector('.search input')"
        profile_tab.ask(f"{field}.value = {words!r}; {field}.dispatchEvent(new Event('input'))")
        return str(profile_tab.ask("document.querySelector('.search output').textContent"))

    assert search("net") == "3 modules with 20.0 MiB, 0 lines"
    assert search("net.h") == "1 module with 10.0 MiB, 0 lines"
    assert search("scenarios.py:21") == "0 modules with 0 B, 1 line"
    shown = "[...document.querySelectorAll('.searched tbody tr')].filter((row) => !row.hidden).length"
    assert profile_tab.ask(shown) == 1
    assert search("") == ""
    assert profile_tab.ask(shown) == 15
    assert profile_tab.complaints() == []
