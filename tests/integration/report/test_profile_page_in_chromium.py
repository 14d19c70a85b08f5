"""The page of a memory profile in a real browser: its icicle can be enlarged, modules and lines
can be searched, and any event and range of events be chosen."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from browser import Tab
from rank_profiles import rank_profile
from tidegauge.analysis.profile.profile import profile_of, profile_of_recording
from tidegauge.analysis.profile.recording import recording_of
from tidegauge.analysis.traces.reading import open_trace
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.step_profile import ModuleMemory
from tidegauge.core.units import format_bytes
from tidegauge_exporter.reports.job_profile_page import RankInFull, render_job
from tidegauge_exporter.reports.profile_page import render_profile

RECORDED = Path(__file__).parents[2] / "data" / "snapshots" / "steady_lm.late.snap.zst"
RECORDING = recording_of(open_trace(RECORDED))
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


@pytest.fixture
def blocks_tab(browser_tab: Tab, tmp_path: Path) -> Tab:
    """The page with the recording's blocks."""
    page = tmp_path / "blocks.html"
    html = render_profile(profile_of_recording(RECORDING), recording=RECORDING, subject="rank 0", made_unix_s=1.8e9)
    page.write_text(html, encoding="utf-8")
    browser_tab.screen(width=1180, height=900)
    browser_tab.open(page.as_uri())
    return browser_tab


def rows(tab: Tab, part: str) -> list[list[str]]:
    cells = "[...row.cells].map((cell) => cell.textContent)"
    found: list[list[str]] = tab.ask(
        f"[...document.querySelectorAll('[data-part={part}] tbody tr')].map((row) => {cells})"
    )
    return found


def choose(tab: Tab, event: int) -> None:
    field = "document.querySelector('.timeline input')"
    tab.ask(f"{field}.value = {event}; {field}.dispatchEvent(new Event('change'))")


def said(tab: Tab) -> str:
    return str(tab.ask("document.querySelector('.timeline .said').textContent"))


def test_the_peak_comes_first_and_what_the_script_tells_of_it_is_what_the_page_told(blocks_tab: Tab) -> None:
    assert said(blocks_tab) == "271.5 MiB allocated at the peak: event 1,379, forward."
    before = rows(blocks_tab, "categories"), rows(blocks_tab, "lines")
    choose(blocks_tab, 10)
    assert (rows(blocks_tab, "categories"), rows(blocks_tab, "lines")) != before
    choose(blocks_tab, 1379)
    assert rows(blocks_tab, "categories") == before[0]
    assert sorted(rows(blocks_tab, "lines")) == sorted(before[1])
    assert blocks_tab.complaints() == []


@pytest.mark.parametrize("event", [0, 435, 2_999])
def test_any_event_shows_what_is_allocated_then(blocks_tab: Tab, event: int) -> None:
    choose(blocks_tab, event)
    held_bytes = sum(one.block.size_bytes for one in RECORDING.blocks if one.block.is_alive_at(event))
    assert said(blocks_tab).startswith(f"{format_bytes(held_bytes)} allocated at event {event:,}")
    told = blocks_tab.ask("document.querySelector('.segments .said').textContent")
    assert f"{format_bytes(held_bytes)} of it allocated" in told


def test_a_range_shows_what_it_leaves_behind_or_its_highest_moment(blocks_tab: Tab) -> None:
    box = blocks_tab.ask("document.querySelector('.timeline canvas').getBoundingClientRect().toJSON()")
    left, right = box["left"] + 66 + 100, box["left"] + 66 + 500
    for kind, x in (("mouseMoved", left), ("mousePressed", left), ("mouseMoved", right), ("mouseReleased", right)):
        blocks_tab.mouse(kind, x, box["top"] + 100)
    width = int(box["width"]) - 66 - 10
    begin, end = (int(x / width * 3000) for x in (100, 500))
    born = [one.block for one in RECORDING.blocks if one.block.made >= begin and one.block.is_alive_at(end)]
    held = format_bytes(sum(block.size_bytes for block in born))
    assert said(blocks_tab).startswith(f"{held} in {len(born):,} blocks were allocated from event {begin:,}")
    mode = "document.querySelector('.timeline select')"
    blocks_tab.ask(f"{mode}.value = 'highest'; {mode}.dispatchEvent(new Event('change'))")
    assert said(blocks_tab) == (
        f"271.5 MiB allocated at the highest moment from event {begin:,} to event {end:,}: event 1,379, forward."
    )
    heads = blocks_tab.ask("[...document.querySelectorAll('[data-moment]')].map((one) => one.textContent)")
    assert set(heads) == {"At the highest moment of the range (event 1,379)"}
    assert blocks_tab.complaints() == []


def test_a_search_finds_functions_in_the_call_stacks(blocks_tab: Tab) -> None:
    field = "document.querySelector('.search input')"
    blocks_tab.ask(f"{field}.value = 'loss_of'; {field}.dispatchEvent(new Event('input'))")
    found = str(blocks_tab.ask("document.querySelector('.search output').textContent"))
    assert re.fullmatch(r"\d functions with [\d.]+ MiB, \d+ lines", found)


def test_the_pointer_shows_an_event_and_its_stack(blocks_tab: Tab) -> None:
    blocks_tab.ask("document.querySelector('.timeline canvas').scrollIntoView()")
    box = blocks_tab.ask("document.querySelector('.timeline canvas').getBoundingClientRect().toJSON()")
    at_peak = box["left"] + 66 + (1379.5 / 3000) * (int(box["width"]) - 66 - 10)
    blocks_tab.mouse("mouseMoved", at_peak, box["top"] + 100)
    lines = blocks_tab.ask("[...document.querySelectorAll('.hint:not([hidden]) div')].map((one) => one.textContent)")
    assert lines[0] == "event 1,379, forward: 271.5 MiB"
    assert lines[1].startswith("activations 82.1 MiB, workspaces 64.0 MiB")
    assert lines[2].startswith("allocates ")
    assert any("train/scenarios.py:" in line for line in lines[3:])


def test_modules_follow_the_event_and_come_back_as_they_were(browser_tab: Tab, tmp_path: Path) -> None:
    named = [one._replace(module=f"Net.layers.{one.block.stack % 3}") for one in RECORDING.blocks]
    recording = RECORDING._replace(blocks=named)
    path = tmp_path / "modules.html"
    html = render_profile(profile_of_recording(recording), recording=recording, subject="a", made_unix_s=1.8e9)
    path.write_text(html, encoding="utf-8")
    browser_tab.open(path.as_uri())
    cells = """[...document.querySelectorAll('[data-part=modules] .cell')].map((one) => [one.dataset.path,
        Number(one.dataset.bytes)]).filter(([path]) => path).sort()"""
    before = browser_tab.ask(cells)
    assert [path for path, _ in before] == ["Net", "Net.layers", *(f"Net.layers.{number}" for number in range(3))]
    choose(browser_tab, 10)
    held = [one.block.requested_bytes for one in named if one.block.is_alive_at(10)]
    assert browser_tab.ask(cells)[0][1] == sum(held)
    choose(browser_tab, 1379)
    assert browser_tab.ask(cells) == before
    assert browser_tab.complaints() == []


@pytest.fixture
def job_tab(browser_tab: Tab, tmp_path: Path) -> Tab:
    """The page of a job's ranks 0 and 3, of which 3 is shown at first."""
    steady = profile_of(open_trace(RECORDED))
    layer = {Category.ACTIVATIONS: 10 * MIB}
    larger = replace(steady, modules=(ModuleMemory("Net", {}, layer), ModuleMemory("Net.head", layer, layer)))
    ranks = [rank_profile(rank) for rank in range(4)]
    in_full = [RankInFull(ranks[3], larger), RankInFull(ranks[0], steady)]
    page = tmp_path / "job.html"
    page.write_text(render_job(ranks, in_full, subject="4711", made_unix_s=1.8e9), encoding="utf-8")
    browser_tab.screen(width=700, height=900)
    browser_tab.open(page.as_uri())
    return browser_tab


def test_a_click_on_a_bar_or_a_choice_shows_another_rank(job_tab: Tab) -> None:
    shown = (
        "[...document.querySelectorAll('.of-rank')].filter((one) => one.offsetHeight).map((one) => one.dataset.rank)"
    )
    chosen = "document.querySelector('.choose-rank select').value"
    assert (job_tab.ask(shown), job_tab.ask(chosen)) == (["3"], "3")
    job_tab.ask("document.querySelector('.rank-bars [data-rank=\"0\"]').click()")
    assert (job_tab.ask(shown), job_tab.ask(chosen)) == (["0"], "0")
    job_tab.ask("document.querySelector('.rank-bars [data-rank=\"1\"]').click()")
    assert job_tab.ask(shown) == ["0"], "rank 1 is not there in full"
    field = "document.querySelector('.choose-rank select')"
    job_tab.ask(f"{field}.value = '3'; {field}.dispatchEvent(new Event('change'))")
    assert job_tab.ask(shown) == ["3"]
    assert job_tab.ask("document.documentElement.scrollWidth") == 700
    assert job_tab.complaints() == []


def test_a_search_is_of_the_shown_rank(job_tab: Tab) -> None:
    field = "document.querySelector('.search input')"
    job_tab.ask(f"{field}.value = 'head'; {field}.dispatchEvent(new Event('input'))")
    said_now = "document.querySelector('.search output').textContent"
    assert job_tab.ask(said_now) == "1 module with 10.0 MiB, 0 lines"
    job_tab.ask("document.querySelector('.rank-bars [data-rank=\"0\"]').click()")
    assert job_tab.ask(said_now) == "0 lines"
