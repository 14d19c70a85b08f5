"""The report as a browser shows it: every part is drawn, nothing is asked for, nothing of a job's is ever run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from browser import Tab
from integration.service import eventually
from report_contents import code_lines, content, evidence, made_trace, stacks, story
from tidegauge.cli.main import main
from tidegauge.core.allocator.trace import Frame
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine
from tidegauge_exporter.reports.chart import WIDTH
from tidegauge_exporter.reports.report import render_report

STEADY = Path(__file__).parents[2] / "data" / "snapshots" / "steady_lm.late.snap.zst"
PARTS = ("growth", "live", "map", "history")
EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=2><svg onload=window.hacked=3>"
COLOURS = """(name) => {
    const canvas = document.querySelector(`[data-part=${name}] canvas`);
    const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
    return new Set(pixels).size;
}"""
"""How many different colours a part has drawn."""
MEMORY = "document.querySelector('.scroll > svg')"
READOUTS = """([...document.querySelectorAll(".readout")].filter((one) => getComputedStyle(one).display !== "none")
    .map((one) => one.textContent).join("|"))"""
"""The figures of the memory chart that are shown."""


def colours(tab: Tab, part: str) -> int:
    return int(tab.ask(f"({COLOURS})('{part}')"))


def said(tab: Tab, part: str) -> str:
    return str(tab.ask(f"document.querySelector('[data-part={part}] .said').textContent"))


def focus(tab: Tab, selector: str) -> None:
    tab.ask(f"document.querySelector('{selector}').focus()")


def middle(tab: Tab, selector: str, *, right: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    """A point of an element, on the screen."""
    script = f"""(() => {{
        const found = document.querySelector('{selector}');
        found.scrollIntoView({{block: "center"}});
        const box = found.getBoundingClientRect();
        return [box.left + box.width * {right}, box.top + box.height * {down}];
    }})()"""
    x, y = tab.ask(script)
    return float(x), float(y)


def click(tab: Tab, x: float, y: float) -> None:
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        tab.mouse(kind, x, y)


def test_every_part_is_drawn_without_a_complaint_or_a_request(tab: Tab, page: Path) -> None:
    assert tab.ask("document.documentElement.dataset.drawn") == str(len(PARTS))
    assert tab.ask("document.documentElement.dataset.failed") == ""
    assert {part: colours(tab, part) > 3 for part in PARTS} == dict.fromkeys(PARTS, True)
    assert tab.complaints() == []
    assert tab.requests() == [page.as_uri()]


def test_the_page_as_wide_as_a_phone_does_not_scroll_sideways(tab: Tab, page: Path) -> None:
    tab.screen(width=390, height=800)
    tab.open(page.as_uri())
    assert tab.ask("document.documentElement.scrollWidth") <= 390
    assert min(colours(tab, part) for part in PARTS) > 3


CUT_OFF = """[...document.querySelectorAll(".scroll:has(> table)")]
    .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent.slice(0, 80))"""
"""Tables of which a column is out of sight."""


def test_no_column_is_cut_off_where_a_holder_has_a_long_path(tab: Tab, tmp_path: Path) -> None:
    whole = content()
    assert whole.evidence is not None
    assert whole.evidence.search is not None
    (holder,) = whole.evidence.search.holders
    path = "MyTrainer.callbacks[3]._handlers['on_train_batch_end'].store.pending_predictions (list, run.py)"
    long = holder._replace(path=path, detail="one_graph_of_121_nodes," * 6)
    search = whole.evidence.search._replace(holders=(long, long._replace(path="x" * 200)))
    page = tmp_path / "long.html"
    page.write_text(render_report(replace(whole, evidence=replace(whole.evidence, search=search))), encoding="utf-8")
    for width in (1400, 1180):
        tab.screen(width=width, height=900)
        tab.open(page.as_uri())
        assert tab.ask(CUT_OFF) == []


def test_report_canvas_follows_the_browsers_dark_mode(tab: Tab) -> None:
    corner = "[...document.querySelector('[data-part=live] canvas').getContext('2d').getImageData(3, 3, 1, 1).data]"
    light = tab.ask(corner)
    tab.screen(width=1180, height=900, dark=True)
    tab.wait_for(f"{corner}[0] < {light[0]}")
    assert tab.ask("document.documentElement.dataset.failed") == ""


def test_the_memory_plot_fits_on_paper_with_its_last_figures(tab: Tab) -> None:
    tab.screen(width=700, height=900, media="print")
    assert 0 < float(tab.ask(f"{MEMORY}.getBoundingClientRect().width")) <= 700
    assert str(tab.ask(READOUTS)).startswith("2027-01-15 08:00:00 UTC")
    assert tab.ask("getComputedStyle(document.querySelector('.tools')).display") == "none"


def test_before_it_is_printed_all_is_drawn_in_the_colours_of_paper(tab: Tab, page: Path) -> None:
    corner = "[...document.querySelector('[data-part=live] canvas').getContext('2d').getImageData(3, 3, 1, 1).data][0]"
    light = tab.ask(corner)
    tab.screen(width=1180, height=900, dark=True)
    tab.open(page.as_uri())
    dark = tab.ask(corner)
    tab.ask("void dispatchEvent(new Event('beforeprint'))")
    assert dark < 128 < tab.ask(corner) <= light
    tab.ask("void dispatchEvent(new Event('afterprint'))")
    assert tab.ask(corner) == dark


def test_the_readout_is_of_the_point_under_the_pointer_and_else_the_last(tab: Tab) -> None:
    assert str(tab.ask(READOUTS)).startswith("2027-01-15 08:00:00 UTC, step 600: ")
    tab.mouse("mouseMoved", *middle(tab, ".readouts g:nth-child(4) rect"))
    tab.wait_for(f"{READOUTS}.startsWith('2027-01-15 07:04:00 UTC, step 40: ')")


def test_the_memory_chart_is_walked_by_keys(tab: Tab) -> None:
    focus(tab, ".scroll > svg")
    tab.key("Home")
    assert str(tab.ask(READOUTS)).startswith("2027-01-15 07:0")
    first = tab.ask(READOUTS)
    tab.key("ArrowRight")
    assert "|" not in str(tab.ask(READOUTS)) != first
    assert tab.ask("document.querySelector('.scroll + .said').textContent") == tab.ask(READOUTS)
    tab.key("End")
    tab.key("Escape")
    assert str(tab.ask(READOUTS)).startswith("2027-01-15 08:00:00 UTC, step 600: ")


def test_dragging_zooms_into_the_memory_chart_and_escape_shows_all(tab: Tab) -> None:
    view = f"{MEMORY}.querySelector('svg').getAttribute('viewBox')"
    whole = tab.ask(view)
    left, y = middle(tab, ".scroll > svg", right=0.4)
    right, _ = middle(tab, ".scroll > svg", right=0.6)
    for kind, x in (("mouseMoved", left), ("mousePressed", left), ("mouseMoved", right), ("mouseReleased", right)):
        tab.mouse(kind, x, y)
    tab.wait_for(f"{view} !== '{whole}'")
    low, _, width, _ = map(float, str(tab.ask(view)).split())
    assert (low, width) == pytest.approx((0.4 * WIDTH, 0.2 * WIDTH), rel=0.05)
    strip = "(document.querySelector('.readouts g:hover') || {}).textContent || ''"
    tab.mouse("mouseMoved", *middle(tab, ".scroll > svg", right=0.1))
    tab.wait_for(f"({strip}).startsWith('2027-01-15 07:3')")
    tab.mouse("mouseMoved", *middle(tab, ".scroll > svg", right=0.6))
    tab.wait_for(f"({strip}).startsWith('2027-01-15 07:4')")
    focus(tab, ".scroll > svg")
    tab.key("Escape")
    assert tab.ask(view) == whole


def test_the_curve_is_walked_by_keys(tab: Tab) -> None:
    focus(tab, "[data-part=history] .plot")
    tab.key("Home")
    assert said(tab, "history").startswith("Event 0: 20.0 MiB reserved from the device")
    tab.key("ArrowRight")
    assert said(tab, "history") == "Event 1: 16.0 MiB allocated, model.py:12 in __init__."


def test_dragging_zooms_in_and_escape_shows_all(tab: Tab) -> None:
    drawn = "document.querySelector('[data-part=history] canvas').toDataURL()"
    left, y = middle(tab, "[data-part=history] .u-over", right=0.4)
    right, _ = middle(tab, "[data-part=history] .u-over", right=0.45)
    before = tab.ask(drawn)
    tab.mouse("mouseMoved", left, y)
    tab.mouse("mousePressed", left, y)
    tab.mouse("mouseMoved", right, y)
    tab.mouse("mouseReleased", right, y)
    tab.wait_for(f"{drawn} !== '{before}'")
    zoomed = tab.ask(drawn)
    focus(tab, "[data-part=history] .plot")
    tab.key("Escape")
    tab.wait_for(f"{drawn} !== '{zoomed}'")


def test_the_flame_graph_is_walked_by_keys(tab: Tab) -> None:
    focus(tab, "[data-part=growth] canvas")
    for _ in range(4):
        tab.key("ArrowDown")
    assert said(tab, "growth").startswith("clone  _tensor.py:512")
    tab.key("ArrowUp")
    assert "step  train.py:41 \u00b7 360.0 MiB, 98 % of all \u00b7 30 blocks" in said(tab, "growth")


def test_a_search_says_how_much_matches(tab: Tab) -> None:
    focus(tab, "[data-part=live] input[type=search]")
    tab.call("Input.insertText", text="BUILD")
    assert said(tab, "live").endswith("Search: 192.0 MiB (35 %).")


def test_library_frames_are_folded_until_somebody_wants_them(tab: Tab) -> None:
    height = "document.querySelector('[data-part=growth] canvas').height"
    folded = tab.ask(height)
    tab.ask("document.querySelector('[data-part=growth] input[type=checkbox]').click()")
    assert tab.ask(height) > folded


def test_a_click_zooms_the_flame_graph_in_and_its_button_out(tab: Tab) -> None:
    button = "document.querySelector('[data-part=live] button')"
    assert tab.ask(f"{button}.disabled")
    canvas = "[data-part=live] canvas"
    click(tab, *middle(tab, canvas, right=0.9, down=0.6))
    assert "build  model.py:66" in said(tab, "live")
    assert not tab.ask(f"{button}.disabled")
    tab.ask(f"{button}.click()")
    assert tab.ask(f"{button}.disabled")


def test_the_map_tells_of_the_block_under_the_pointer_and_marks_its_line(tab: Tab) -> None:
    x, y = middle(tab, "[data-part=map] canvas", right=0.999, down=0.8)
    tab.mouse("mouseMoved", x, y)
    hint = tab.ask("document.querySelector('.hint').textContent")
    assert "12.0 MiB, live, from a stack that grew" in hint
    assert "train.py:41 in step" in hint
    click(tab, x, y)
    assert said(tab, "map").startswith("360.0 MiB in 30 blocks come from step  train.py:41")


def test_the_map_is_walked_by_keys(tab: Tab) -> None:
    focus(tab, "[data-part=map] .map")
    tab.key("Home")
    assert said(tab, "map").startswith("16.0 MiB, live \u00b7 model.py:12 in __init__ \u00b7 at 0x7f0000000000")
    tab.key("ArrowRight")
    assert said(tab, "map").startswith("4.0 MiB, free")
    rows = "document.querySelector('[data-part=map] .spacer').style.height"
    before = tab.ask(rows)
    tab.key("+", "+")
    assert tab.ask(rows) != before


def test_report_never_runs_text_of_a_job(tab: Tab, tmp_path: Path) -> None:
    evil = (Frame(EVIL, f"/home/{EVIL}.py", 1),)
    line = CodeLine(f"/home/{EVIL}.py", 1, EVIL)
    about = evidence()
    assert about.search is not None
    told = replace(
        about,
        growth=(StackGrowth(1 << 30, 2, (line,), line, 1 << 29), StackGrowth(9, 1, code_lines(evil), None)),
        search=about.search._replace(holders=(about.search.holders[0]._replace(path=EVIL),)),
        cause=about.cause._replace(advice=EVIL),
    )
    trace = replace(made_trace(), stacks=(evil,) * len(stacks()))
    path = tmp_path / "evil.html"
    told_story = story(job_name=EVIL, user_name=EVIL)
    report = content(title=EVIL, evidence=told, late=trace, early=None, story=told_story, absent=(EVIL,))
    path.write_text(render_report(report), encoding="utf-8")
    tab.open(path.as_uri())
    for part, right in (("growth", 0.3), ("live", 0.3), ("map", 0.999)):
        tab.mouse("mouseMoved", *middle(tab, f"[data-part={part}] canvas", right=right, down=0.8))
        assert "window.hacked" in tab.ask("document.querySelector('.hint').textContent")
    assert tab.ask("typeof window.hacked") == "undefined"
    assert tab.ask("document.querySelectorAll('img, body svg[onload], main script').length") == 0
    assert tab.requests() == [path.as_uri()]
    assert tab.complaints() == []


def test_a_script_that_slipped_in_would_not_run(tab: Tab, page: Path, tmp_path: Path) -> None:
    """Should the escaping ever fail: the policy of the page holds."""
    path = tmp_path / "slipped.html"
    slipped = "<script>window.hacked=1</script><img src='http://127.0.0.1:1/x' onerror='window.hacked=2'>"
    path.write_text(page.read_text().replace("</main>", f"{slipped}</main>"), encoding="utf-8")
    tab.open(path.as_uri())
    assert tab.ask("typeof window.hacked") == "undefined"
    eventually(lambda: len(tab.complaints()) >= 2, "both are complained of")


def test_without_a_script_the_words_and_the_tables_are_there(tab: Tab, page: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.open(page.as_uri())
        document = tab.call("DOM.getDocument")["root"]["nodeId"]
        found = tab.call("DOM.querySelectorAll", nodeId=document, selector=".scroll > svg, .static p")["nodeIds"]
        boxes = [tab.call("DOM.getBoxModel", nodeId=node)["model"]["height"] for node in found]
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)
    assert len(boxes) > len(PARTS)
    assert boxes[0] > 0


@pytest.mark.parametrize("steps", [700])
def test_a_hundred_thousand_events_are_drawn(tab: Tab, tmp_path: Path, steps: int) -> None:
    path = tmp_path / "large.html"
    path.write_text(render_report(content(steps=steps)), encoding="utf-8")
    tab.open(path.as_uri())
    assert tab.ask("document.documentElement.dataset.drawn") == str(len(PARTS))
    assert colours(tab, "history") > 3
    assert colours(tab, "map") > 3
    assert tab.complaints() == []


def test_the_report_of_one_snapshot_shows_its_peak_and_any_event(browser_tab: Tab, tmp_path: Path) -> None:
    path = tmp_path / "one.html"
    assert main(["report", str(STEADY), "--no-whatif", "-o", str(path)]) == 0
    browser_tab.screen(width=1180, height=900)
    browser_tab.open(path.as_uri())
    said = "document.querySelector('.timeline .said').textContent"
    assert browser_tab.ask(said) == "271.5 MiB allocated at the peak: event 1,379, forward."
    links = "[...document.querySelectorAll('[data-event] button')]"
    browser_tab.ask(f"{links}.find((one) => one.textContent === '1,510').click()")
    assert browser_tab.ask(said) == "254.4 MiB allocated at event 1,510, backward."
    shown = "[...document.querySelectorAll('.without-blocks')].some((one) => one.checkVisibility())"
    assert browser_tab.ask(shown) is False
    assert browser_tab.ask("document.documentElement.dataset.failed") == ""
    assert browser_tab.complaints() == []
