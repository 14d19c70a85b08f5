from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import tidegauge_exporter
from html_text import Page
from report_contents import content, evidence, points, ranks, story
from sample_views import GIB, LEAK, NOW_S
from scheduler_values import decision, record
from tidegauge.core.evidence import NOT_KNOWN, StackGrowth
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.evidence.rank_evidence import HolderSearch
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge.core.verdicts import OK, Band
from tidegauge_exporter.reports.evidence_sections import suspects
from tidegauge_exporter.reports.html_page import script_json
from tidegauge_exporter.reports.memory_plot import MAX_MARKS, memory_plot
from tidegauge_exporter.reports.report import DATA_ID, render_report
from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028&amp;\"'`"
BUNDLE = Path(tidegauge_exporter.__file__).parent / "reports" / "report_page"


class Elements(HTMLParser):
    """Text of scripts and style sheets, and the policy."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.inside: list[tuple[str, dict[str, str | None], str]] = []
        self.policy = ""
        self._open: tuple[str, dict[str, str | None]] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self._open = (tag, known) if tag in ("script", "style") else None
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.inside.append((*self._open, data))
            self._open = None


def data_of(html: str) -> dict[str, Any]:
    (text,) = [text for _, attrs, text in Elements(html).inside if attrs.get("id") == DATA_ID]
    data: dict[str, Any] = json.loads(text)
    return data


def files_only(**changes: Any) -> ReportContent:
    """Without a service."""
    return replace(content(), story=None, ranks=(), **changes)


def test_the_page_names_line_holder_cause_and_what_to_change() -> None:
    words = Page(render_report(content())).text
    for fact in (
        "Rank 1 of job 4711 leaks 12.0 MiB per step since step 150",
        "train.py: Trainer.history (list, 412 items)",
        "Tensors kept alive by Python references.",
        "One line allocated 98 % of what grew.",
        "llm/train.py:41",
        "360.0 MiB",
        "expandable_segments:True",
        "Told in Slack.",
        "Collecting evidence paused training for at most 21 ms.",
        "Phases of training are not known to the service.",
    ):
        assert fact in words


def test_names_in_advice_are_shown_as_code() -> None:
    assert "<code>loss.item()</code>" in render_report(content())


def test_the_script_and_the_style_are_allowed_by_their_hashes_and_nothing_else_is() -> None:
    html = render_report(content())
    elements = Elements(html)
    hashes = {
        tag: base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, attrs, text in elements.inside
        if not attrs
    }
    assert elements.policy.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{hashes['script']}'",
        f"style-src 'sha256-{hashes['style']}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    assert Page(html).fetched == []
    assert not re.search(r"<[^>]+ (style|on\w+)=", re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL))


def test_evidence_report_escapes_hostile_text_in_page_and_data() -> None:
    line = CodeLine(f"/home/{EVIL}/train.py", 41, EVIL)
    about = evidence()
    assert about.search is not None
    holder = about.search.holders[0]._replace(path=EVIL, detail=EVIL)
    told = replace(
        about,
        growth=(StackGrowth(GIB, 1, (line,), line, GIB),),
        search=HolderSearch((holder,), GIB, GIB, problem=EVIL),
        cause=about.cause._replace(advice=EVIL, because=(EVIL,)),
        problems=(EVIL,),
    )
    html = render_report(content(title=EVIL, evidence=told, absent=(EVIL,), subject=(("Job", EVIL),), late=None))
    assert html.count("<script") == 2
    assert html.count("</script>") == 2
    assert "<img" not in html
    assert "alert(1)" in Page(html).text
    texts = data_of(html)["stacks"]["texts"]
    assert any("</script><script>alert(1)" in text for text in texts)


@pytest.mark.parametrize("text", ["</script>", "<!--", "&lt;", "\u2028\u2029", "\ud800"])
def test_the_datas_json_means_nothing_to_html(text: str) -> None:
    written = script_json({"text": text})
    assert written.isascii()
    assert not set(written) & set("<>&")
    assert json.loads(written) == {"text": text}


def test_without_a_service_the_headline_is_what_the_snapshots_say() -> None:
    words = Page(render_report(files_only())).text
    assert "98 % of what grew on rank 1 in 30 steps was allocated at train.py:41 in step" in words
    assert "Growth between two snapshots is not yet a leak" in words
    assert "Actions" not in words


def test_evidence_report_of_one_snapshot_shows_live_memory() -> None:
    html = render_report(files_only(evidence=None, early=None, whatif=None))
    assert "552.0 MiB of live tensors" in Page(html).text
    assert "not what grows" in Page(html).text
    data = data_of(html)
    assert data["growth"] is None
    assert "<h2>GPU memory" not in html
    assert sum(held for _, held, _ in data["live"]) == 552 << 20


def test_a_step_series_alone_says_whether_it_leaks() -> None:
    calm = files_only(evidence=None, early=None, late=None, by_step=True)
    leaking = RankCurve(0, "steps.csv", points(leaks=True), LEAK, 80 * GIB, concerned=True)
    assert "Rank 0 leaks" in Page(render_report(replace(calm, ranks=(leaking,)))).text
    quiet = leaking._replace(verdict=OK)
    assert "Rank 0 does not grow" in Page(render_report(replace(calm, ranks=(quiet,)))).text


def test_an_unknown_cause_is_said_so() -> None:
    words = Page(render_report(content(evidence=evidence(cause=NOT_KNOWN)))).text
    assert "Unknown." in words
    assert "What to change" not in words


def test_evidence_report_without_growth_names_no_root_cause() -> None:
    calm = evidence(cause=NOT_KNOWN, grown_bytes=-5, growth=())
    words = Page(render_report(files_only(evidence=calm))).text
    assert "Nothing grew on rank 1" in words
    assert "Root cause" not in words


def test_parts_that_are_not_known_are_left_out() -> None:
    bare = ReportContent(made_unix_s=NOW_S, title="t", subject=(), story=replace(story(), memory=()))
    html = render_report(bare)
    assert 'class="drawn"' not in html
    assert "<script" not in html


def test_the_odd_rank_stands_first_beside_the_others() -> None:
    html = render_report(content())
    assert re.findall(r"<b>Rank (\d+)</b>", html) == ["1", "0", "2", "3", "4", "5", "6", "7"]
    assert html.count('class="rank odd"') == 1


def test_many_ranks_are_cut_and_counted() -> None:
    html = render_report(content(ranks=ranks(80)))
    assert html.count("<figure") == 64
    assert "16 more ranks not shown." in Page(html).text


def test_lines_are_ranked_over_all_ways_that_lead_to_them() -> None:
    line, other = CodeLine("a.py", 1, "f"), CodeLine("b.py", 2, "g")
    found = suspects(
        (
            StackGrowth(50, 1, (other,), other, 50),
            StackGrowth(40, 1, (line, CodeLine("m.py", 3, "x")), line, 40),
            StackGrowth(30, 2, (line, CodeLine("m.py", 4, "y")), line, 15),
            StackGrowth(20, 1, (), None, 20),
            StackGrowth(-90, -1, (other,), other, 90),
        )
    )
    assert [(one.line, one.grown_bytes, one.blocks, one.block_bytes) for one in found] == [
        (line, 70, 3, None), (other, 50, 1, 50), (None, 20, 1, 20),
    ]  # fmt: skip
    assert found[0].caller == CodeLine("m.py", 3, "x")


def test_the_chart_has_layers_moments_the_window_and_the_forecast() -> None:
    plot = memory_plot(content())
    assert plot is not None
    assert [layer.kind for layer in plot.layers] == ["nontorch", "allocated", "cached"]
    assert [mark.text for mark in plot.marks] == ["growth begins", "incident opened"]
    assert [(span.start, span.end) for span in plot.spans] == [(NOW_S - 400.0, NOW_S - 100.0)]
    assert plot.forecast is not None
    assert plot.tops()[-1][-1] == points(leaks=True)[-1].used_bytes
    html = render_report(content())
    for drawn in ('class="fan"', "snapshots compared", "limit 80.0 GiB", "growth begins", "incident opened"):
        assert drawn in html


def test_the_figures_at_every_point_of_the_chart_are_in_it() -> None:
    readouts = re.findall(r'class="readout"[^>]*>([^<]+)<', render_report(content()))
    assert len(readouts) == len(points(leaks=True))
    assert readouts[0].startswith("2027-01-15 07:01:00 UTC, step 10: outside PyTorch 900.0 MiB; live tensors ")
    assert readouts[-1].startswith("2027-01-15 08:00:00 UTC, step 600: ")
    assert readouts[-1].endswith("total 61.6 GiB")


def test_a_long_series_has_120_figures_at_most_with_the_last_among_them() -> None:
    curve = RankCurve(0, "steps.csv", points(leaks=True, minutes=1001), OK)
    html = render_report(replace(files_only(evidence=None, by_step=True), ranks=(curve,)))
    readouts = re.findall(r'class="readout"[^>]*>([^<]+)<', html)
    assert 100 <= len(readouts) <= 120
    assert readouts[-1].startswith("step 10,010: ")


def test_evidence_report_chart_marks_actions() -> None:
    done = [
        record(decision(action, decided_s=NOW_S - 500.0), Outcome.DONE)
        for action in (ActionKind.CHECKPOINT, ActionKind.REQUEUE, ActionKind.NOTIFY)
    ]
    plot = memory_plot(content(story=replace(story(), decisions=tuple(done * 9))))
    assert plot is not None
    marks = [mark.text for mark in plot.marks]
    assert len(marks) == MAX_MARKS
    assert marks[:2] == ["growth begins", "incident opened"]
    assert set(marks[2:]) == {"checkpoint saved", "requeued"}


def test_a_forecast_without_an_end_is_drawn_as_far_as_the_axis_goes() -> None:
    about = story(seconds_to_oom=Band(840.0, 1_080.0, math.inf))
    plot = memory_plot(content(story=about))
    assert plot is not None
    assert plot.forecast is not None
    assert math.isinf(plot.forecast.latest)
    assert plot.forecast.ends(80.0 * GIB)[2][0] == plot.until


def test_a_step_series_is_forecast_in_steps() -> None:
    verdict = LEAK._replace(steps_to_oom=Band(100.0, 120.0, 150.0), onset_step=150, alarm_step=300)
    curve = RankCurve(0, "steps.csv", points(leaks=True), verdict, 80 * GIB)
    plot = memory_plot(replace(files_only(evidence=None, by_step=True), ranks=(curve,)))
    assert plot is not None
    assert plot.forecast is not None
    assert (plot.forecast.earliest, plot.forecast.likely, plot.forecast.latest) == (700.0, 720.0, 750.0)
    assert [(mark.x, mark.text) for mark in plot.marks] == [(150.0, "growth begins"), (300.0, "growth established")]


@pytest.mark.parametrize("name", ["report.js", "profile.js", "site.js"])
def test_the_bundle_is_what_its_sources_give(name: str) -> None:
    """Without node: the first line of the bundle names the sources that it was made from."""
    sources = hashlib.sha256((BUNDLE / "package-lock.json").read_bytes())
    for folder in (BUNDLE / "src", BUNDLE / "src" / "profile", BUNDLE / "src" / "site"):
        for path in sorted(folder.glob("*.js")):
            sources.update(path.read_bytes())
    first = (BUNDLE / "built" / name).read_text(encoding="ascii")[:100]
    assert sources.hexdigest() in first, "run scripts/build_report_page.sh and commit report_page/built"


def test_every_package_in_the_bundle_is_named_with_its_licence() -> None:
    wanted = json.loads((BUNDLE / "package.json").read_text())["dependencies"]
    told = (BUNDLE / "built" / "LICENSES.txt").read_text()
    for name, version in wanted.items():
        assert f"{name} {version}" in told
    assert "MIT License" in told


def test_the_lockfile_names_no_registry() -> None:
    assert "://" not in re.sub(r'"url": "[^"]*"', "", (BUNDLE / "package-lock.json").read_text())
