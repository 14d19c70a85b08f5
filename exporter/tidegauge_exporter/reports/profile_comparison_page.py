"""Two memory profiles as one page: both over time on one axis, and what the gap of their peaks is made of."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from tidegauge.analysis.profile.words import (
    OUTSIDE,
    change_of_phase,
    comparison_sentence,
    known_bytes,
    line_of_change,
    signed_bytes,
)
from tidegauge.core.profile.comparison import ProfileComparison
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.units import format_bytes
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.chart import Axis, ChartLine, ChartMark, draw, step_ticks
from tidegauge_exporter.reports.html_page import lead, legend, meta, page, policy, section, style_sheet, table
from tidegauge_exporter.reports.profile_page import MAX_LINES, MAX_NAME_CHARS, category_css

_EVENTS: Final = Axis("allocator event, from the beginning of each recording", step_ticks)
_CHANGE: Final = ("before", "after", "change")


def render_comparison(
    before: StepProfile, after: StepProfile, compared: ProfileComparison, *, subjects: Sequence[str], made_unix_s: float
) -> str:
    """The page of ``comparison_parts``."""
    parts = comparison_parts(before, after, compared, subjects=subjects, made_unix_s=made_unix_s)
    style = style_sheet()
    return page(f"{signed_bytes(compared.grown_bytes)} at the peak", parts, head=policy(style), style=style)


def comparison_parts(
    before: StepProfile, after: StepProfile, compared: ProfileComparison, *, subjects: Sequence[str], made_unix_s: float
) -> list[str]:
    """The sections. ``subjects`` are the two files or jobs, for people."""
    sentence = comparison_sentence(compared)
    return [
        meta([("Before", subjects[0]), ("After", subjects[1])], made_unix_s=made_unix_s),
        lead(
            sentence,
            tone="warning" if compared.grown_bytes > 0 else "ok",
            figures=[
                (format_bytes(compared.before_peak_bytes), "peak before"),
                (format_bytes(compared.after_peak_bytes), "peak after"),
                (signed_bytes(compared.grown_bytes), "change"),
            ],
        ),
        section("Allocated over the recordings", *_chart(before, after, sentence)),
        section("What the gap is made of, by category", _categories(compared)),
        section("By module", _modules(compared)),
        section("By line", _lines(compared)),
        section("Highest in each phase", _phases(compared)),
        "<footer>Made by Tidegauge from two recorded allocation histories.</footer>",
    ]


def _chart(before: StepProfile, after: StepProfile, sentence: str) -> list[str]:
    curves, marks = [], []
    for profile, css, name in ((before, "calm", "before"), (after, "warn", "after")):
        columns = list(profile.timeline.by_category.values())
        if not columns:
            return []
        totals = map(float, map(sum, zip(*columns, strict=True)))
        at = [float(max(event, 0)) for event in profile.timeline.events]
        curves.append(ChartLine(list(zip(at, totals, strict=True)), css=css, title=name, label=name))
        peak = profile.peak
        marks.append(ChartMark(float(max(peak.event, 0)), f"{name}: {format_bytes(peak.allocated_bytes)}", "onset"))
    chart = draw(curves, marks=marks, axis=_EVENTS, description=sentence)
    return [legend([("curve calm", "before"), ("curve warn", "after")]), f'<div class="scroll">{chart}</div>']


def _categories(compared: ProfileComparison) -> str:
    widest = max((abs(one.grown_bytes) for one in compared.categories), default=0) or 1
    rows = []
    for one in compared.categories:
        width = 50 * abs(one.grown_bytes) / widest
        left = 50.0 if one.grown_bytes > 0 else 50 - width
        bar = f'<rect class="{category_css(one.category)}" x="{left:.2f}" width="{width:.2f}" height="6"/>'
        rows.append(
            (
                escape(one.category.value),
                format_bytes(one.before_bytes),
                format_bytes(one.after_bytes),
                signed_bytes(one.grown_bytes),
                f'<svg class="bar" viewBox="0 0 100 6" preserveAspectRatio="none">{bar}</svg>',
            )
        )
    return table(("category", *_CHANGE, ""), rows, numbers=(1, 2, 3)) if rows else ""


def _modules(compared: ProfileComparison) -> str:
    rows = [
        (
            _name(OUTSIDE if one.path is None else one.path),
            format_bytes(one.before_bytes),
            format_bytes(one.after_bytes),
            signed_bytes(one.grown_bytes),
        )
        for one in compared.modules
    ]
    heads = ("module", *_CHANGE)
    return table(heads, rows, numbers=(1, 2, 3), most=MAX_LINES, what="modules") if rows else ""


def _lines(compared: ProfileComparison) -> str:
    rows = [
        (
            signed_bytes(one.grown_bytes),
            f"{one.after_blocks - one.before_blocks:+,}",
            escape(one.category.value),
            _name(line_of_change(one)),
        )
        for one in compared.lines
    ]
    heads = ("change", "blocks", "category", "line")
    return table(heads, rows, numbers=(0, 1), most=MAX_LINES, what="lines") if rows else ""


def _phases(compared: ProfileComparison) -> str:
    rows = [
        (escape(one.phase.value), known_bytes(one.before_bytes), known_bytes(one.after_bytes), change_of_phase(one))
        for one in compared.phases
    ]
    return table(("phase", *_CHANGE), rows, numbers=(1, 2, 3)) if rows else ""


def _name(text: str) -> str:
    return f'<span class="path">{escape(tidy(text, MAX_NAME_CHARS))}</span>'
