"""A recorded job's memory under several allocator settings: a page of its own, or a picture to send around."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from tidegauge.core.allocator.results import MemoryCurve
from tidegauge.core.units import format_bytes
from tidegauge_exporter.reports.chart import HEIGHT, STEPS, WIDTH, Axis, ChartLine, draw, step_ticks
from tidegauge_exporter.reports.html_page import bullets, legend, page, section, style_sheet

LOOKS = ("today", "calm", "warn")
"""Css classes of the curves of the courses; today's is the first, and plain."""
SHORT_S = 20
"""Length of a recording below which the axis counts milliseconds."""
ANOTHER = 0.01
"""Relative difference of allocated memory beyond which it has a curve of its own: roundup settings change it."""

_EVENTS = Axis("allocator event", step_ticks)
_SECONDS = Axis("seconds since the recording began", step_ticks)
_MILLISECONDS = Axis("milliseconds since the recording began", step_ticks)
_LINE_HEIGHT = 20.0
_SVG_STYLE = ".card { fill: var(--card); stroke: none; }"


class PlottedCourse(NamedTuple):
    """The memory under one setting."""

    label: str
    """One short word, written at the end of its curve."""
    title: str
    curve: MemoryCurve


class Moments(NamedTuple):
    """The times of a recording's events, as far as known."""

    steps: Sequence[int] = ()
    """The event at which each training step ended."""
    time_us: Sequence[int] = ()
    """The time of every event, in microseconds."""


class PlotClock(NamedTuple):
    """The axis, and the places of a curve's points on it."""

    axis: Axis
    at: Sequence[float]


def clock(curve: MemoryCurve, moments: Moments) -> PlotClock:
    """Places by training step if known, else by the recording's clock, else by its events."""
    if moments.steps:
        return PlotClock(STEPS, [_step_at(event, moments.steps) for event in curve.event])
    if not moments.time_us:
        return PlotClock(_EVENTS, [float(event) for event in curve.event])
    passed_us = [moments.time_us[event] - moments.time_us[0] for event in curve.event]
    if max(passed_us, default=0) < SHORT_S * 1_000_000:
        return PlotClock(_MILLISECONDS, [passed / 1_000 for passed in passed_us])
    return PlotClock(_SECONDS, [passed / 1_000_000 for passed in passed_us])


def _step_at(event: int, steps: Sequence[int]) -> float:
    """The number of ended steps plus the passed part of the next one, counted in events."""
    ended = bisect_right(steps, event)
    if ended == len(steps):
        return float(ended)
    began = steps[ended - 1] if ended else 0
    return ended + (event - began) / max(steps[ended] - began, 1)


def plot_page(
    courses: Sequence[PlottedCourse],
    *,
    moments: Moments,
    limit_bytes: int | None,
    heading: str,
    sentences: Iterable[str],
) -> str:
    """The HTML page. ``courses``: today's first, then the best."""
    lines = _lines(courses, moments)
    chart = _chart(courses, lines, moments, limit_bytes)
    looks = [(line.css if line.filled else f"curve {line.css}", escape(line.title)) for line in lines]
    parts = [
        section(heading, legend(looks), f'<div class="scroll">{chart}</div>'),
        section("Findings", bullets(sentences)),
        "<footer>Made by Tidegauge from a recorded trace: only the current settings were measured.</footer>",
    ]
    return page(heading, parts)


def plot_svg(courses: Sequence[PlottedCourse], *, moments: Moments, limit_bytes: int | None, heading: str) -> str:
    """The picture alone, in the viewer's light or dark theme, with the names of the curves below it."""
    lines = _lines(courses, moments)
    chart = _chart(courses, lines, moments, limit_bytes)
    height = HEIGHT + _LINE_HEIGHT * (len(lines) + 1)
    keys = [_key(line, HEIGHT + _LINE_HEIGHT * row) for row, line in enumerate(lines, start=1)]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}">',
            f"<title>{escape(heading)}</title>",
            f"<style>{escape(style_sheet(), quote=False)}{_SVG_STYLE}</style>",
            f'<rect class="card" width="{WIDTH:g}" height="{height:g}"/>',
            # Of a nested picture browsers take the size from attributes alone, whatever the style sheet says.
            f'<svg width="{WIDTH:g}" height="{HEIGHT:g}">{chart}</svg>',
            *keys,
            "</svg>\n",
        ]
    )


def _chart(
    courses: Sequence[PlottedCourse], lines: Sequence[ChartLine], moments: Moments, limit_bytes: int | None
) -> str:
    peaks = "; ".join(
        f"{course.title}: {format_bytes(max(course.curve.reserved_bytes, default=0))}" for course in courses
    )
    axis = clock(courses[0].curve, moments).axis
    return draw(lines, limit=limit_bytes, axis=axis, description=f"Peak of reserved memory: {peaks}")


def _lines(courses: Sequence[PlottedCourse], moments: Moments) -> list[ChartLine]:
    """Lines of the chart: allocated memory of today's settings as an area, and reserved memory of each setting."""
    today = courses[0].curve
    at = clock(today, moments).at
    area = list(zip(at, map(float, today.allocated_bytes), strict=True))
    lines = [ChartLine(area, css="area allocated", title="allocated: what the job had alive", filled=True)]
    for course, css in zip(courses, LOOKS, strict=False):
        at = clock(course.curve, moments).at
        reserved = list(zip(at, map(float, course.curve.reserved_bytes), strict=True))
        lines.append(
            ChartLine(reserved, css=css, title=f"reserved, {course.label}: {course.title}", label=course.label)
        )
        if _differs(course.curve, today):
            allocated = list(zip(at, map(float, course.curve.allocated_bytes), strict=True))
            lines.append(
                ChartLine(allocated, css=f"{css} many", title=f"allocated, {course.label}: its sizes are others")
            )
    return lines


def _differs(curve: MemoryCurve, today: MemoryCurve) -> bool:
    ours, theirs = max(curve.allocated_bytes, default=0), max(today.allocated_bytes, default=0)
    return abs(ours - theirs) > ANOTHER * theirs


def _key(line: ChartLine, y: float) -> str:
    css = line.css if line.filled else f"curve {line.css}"
    width = ' stroke-width="8"' if line.filled else ""
    return (
        f'<path class="{css}"{width} d="M78 {y:g}H112"/>'
        f'<text class="axis" x="120" y="{y + 4:g}">{escape(line.title)}</text>'
    )
