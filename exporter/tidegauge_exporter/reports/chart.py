"""Charts of memory over training steps or time as inline SVG, with colours by classes of report.css."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from html import escape
from itertools import pairwise
from typing import NamedTuple

from tidegauge.core.units import IEC_UNITS, format_bytes

WIDTH, HEIGHT = 960.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 92.0, 46.0, 42.0
MARK_ROW = 16.0
"""Height of a row of words above the plot, one for each mark."""
POINTS_PER_CURVE = 480
"""Points of a curve, about one every other pixel."""
LABEL_HEIGHT = 15.0
READOUT_ROW = 22.0
"""Height of the line below the x axis that the readouts share."""
MAX_TICKS = 9
"""Bound of ticks on the x axis: more of them would touch."""
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * _MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY_S for days in (1, 2, 7, 14, 28)),
)

Point = tuple[float, float]


class Tick(NamedTuple):
    """A tick on an axis."""

    x: float
    text: str


class Axis(NamedTuple):
    """The x axis: its name and its ticks."""

    name: str
    ticks: Callable[[float, float], list[Tick]]
    """Returns the ticks inside a range, lowest first."""


def byte_ticks(low: float, high: float) -> list[float]:
    """Four to seven ticks around ``low`` .. ``high``, the outer ones included, a power of two bytes apart."""
    size = 2.0 ** math.ceil(math.log2(max((high - low) / 6, 1.0)))
    first = math.floor(low / size)
    last = max(math.ceil(high / size), first + 1)
    return [index * size for index in range(first, last + 1)]


def step_ticks(low: float, high: float) -> list[Tick]:
    """Round steps inside ``low`` .. ``high``."""
    rough = max((high - low) / (MAX_TICKS - 1), 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [Tick(x, f"{x:,.0f}") for x in _multiples(low, high, size)]


def time_ticks(low_unix_s: float, high_unix_s: float) -> list[Tick]:
    """Round times of day inside the range, in UTC; a day's first moment is written as its date."""
    rough_s = (high_unix_s - low_unix_s) / (MAX_TICKS - 1)
    size_s = next((size_s for size_s in _TIME_STEPS_S if size_s >= rough_s), math.ceil(rough_s / _DAY_S) * _DAY_S)
    return [Tick(at_unix_s, _moment(at_unix_s, size_s)) for at_unix_s in _multiples(low_unix_s, high_unix_s, size_s)]


def _multiples(low: float, high: float, size: float) -> list[float]:
    return [index * size for index in range(math.ceil(low / size), math.floor(high / size) + 1)]


def _moment(at_unix_s: float, size_s: float) -> str:
    when = datetime.fromtimestamp(at_unix_s, timezone.utc)
    if at_unix_s % _DAY_S == 0:
        return f"{when:%m-%d}"
    return f"{when:%H:%M:%S}" if size_s < _MINUTE_S else f"{when:%H:%M}"


STEPS = Axis("training step", step_ticks)
TIME = Axis("time, UTC", time_ticks)


@dataclass(frozen=True)
class ChartLine:
    """A curve. ``points`` are (x, bytes) in order; ``css`` names its look; ``label`` is written at its end."""

    points: Sequence[Point]
    css: str
    title: str
    label: str | None = None
    filled: bool = False
    """True to fill the area below the curve; the axis then begins at 0."""


@dataclass(frozen=True)
class ChartMark:
    """A vertical line with a few words."""

    x: float
    text: str
    css: str


class ChartSpan(NamedTuple):
    """A shaded stretch of the x axis with a few words."""

    start: float
    end: float
    text: str


class Readout(NamedTuple):
    """The figures at one x, shown while the pointer is there; without a pointer the last readout is shown."""

    x: float
    text: str


class Forecast(NamedTuple):
    """A fan from the end of a curve up to the limit."""

    start: Point
    earliest: float
    """The earliest x at which the limit is reached."""
    likely: float
    latest: float
    """The latest x; may be infinite."""
    until: float
    """The x at which its drawing ends."""

    def ends(self, limit: float) -> tuple[Point, Point, Point]:
        """The ends of the three lines: earliest, likely, latest."""
        earliest, likely, latest = (self._end(meets, limit) for meets in (self.earliest, self.likely, self.latest))
        return earliest, likely, latest

    def _end(self, meets: float, limit: float) -> Point:
        x, y = self.start
        if meets <= self.until:
            return max(meets, x), limit
        return self.until, y + (limit - y) * (self.until - x) / (meets - x)


class _Drawing(NamedTuple):
    """The two layers of a chart."""

    shapes: list[str]
    """Shapes in an ``svg`` of their own, which the report's script stretches (``report_page/src/memory.js``)."""
    words: list[str]
    """Words in front of the shapes, with their x, if they belong to one, in ``data-x``."""


@dataclass(frozen=True)
class _Scale:
    """The scale from data to the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float
    top: float = TOP

    def x(self, at: float) -> float:
        return LEFT + (at - self.x_low) / ((self.x_high - self.x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, count: float) -> float:
        return HEIGHT - BOTTOM - (count - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - self.top - BOTTOM)


def draw(
    lines: Sequence[ChartLine],
    *,
    marks: Sequence[ChartMark] = (),
    spans: Sequence[ChartSpan] = (),
    readouts: Sequence[Readout] = (),
    limit: float | None = None,
    forecast: Forecast | None = None,
    until: float | None = None,
    axis: Axis = STEPS,
    description: str,
) -> str:
    """The chart. ``limit`` (bytes) is drawn where the curves or the forecast, which needs one, come near it, else it
    would flatten them. ``until`` is where the x axis ends, if that is beyond everything that is drawn."""
    points = [point for line in lines for point in line.points]
    if not points:
        return '<p class="muted">No readings.</p>'
    ends = forecast.ends(limit) if forecast is not None and limit is not None else ()
    if forecast is not None:
        points.extend((forecast.start, *ends))
    highest = max(y for _, y in points)
    near = limit if limit is not None and highest >= 0.6 * limit else None
    if any(line.filled for line in lines):
        points.append((points[0][0], 0.0))
    if until is not None:
        points.append((until, points[0][1]))
    scale, ticks = _fit(points, highest if near is None else max(highest, near))
    scale = replace(scale, top=max(TOP, LABEL_HEIGHT * 2 + MARK_ROW * len(marks)))
    lines = [replace(line, points=thin(line.points, POINTS_PER_CURVE)) for line in lines]
    height = HEIGHT + READOUT_ROW * bool(readouts)
    drawing = _Drawing([_area(line, scale) for line in lines if line.filled and line.points], [])
    _grid(drawing, scale, ticks, axis)
    for span in spans:
        _span(drawing, span, scale)
    for row, mark in enumerate(marks):
        _mark(drawing, mark, row, scale)
    if near is not None:
        _limit(drawing, near, scale)
    if forecast is not None and ends:
        drawing.shapes.append(_fan(forecast, ends, scale))
    drawing.shapes.extend(_curve(line, scale) for line in lines if line.points and not line.filled)
    drawing.words.extend(_labels(lines, scale))
    place = f'x="{LEFT:g}" width="{WIDTH - LEFT - RIGHT:g}" height="{HEIGHT:g}"'
    view = f'viewBox="{LEFT:g} 0 {WIDTH - LEFT - RIGHT:g} {HEIGHT:g}" preserveAspectRatio="none"'
    return "\n".join(
        [
            f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(description)}">',
            f"<svg {place} {view}>",
            *drawing.shapes,
            "</svg>",
            *drawing.words,
            *_readouts(readouts, scale),
            "</svg>",
        ]
    )


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most about ``most`` points of the same look: lowest and highest of each stretch, in order, and both ends."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(len(points) / (most // 2))
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        indexes = range(start, min(start + stretch, len(points)))
        kept.add(min(indexes, key=lambda index: points[index][1]))
        kept.add(max(indexes, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]


def _fit(points: Sequence[Point], highest: float) -> tuple[_Scale, list[float]]:
    """Scale and ticks. The axis begins at 0 unless that would hide the shape of curves in the upper part."""
    lowest = min(y for _, y in points)
    ticks = byte_ticks(0.0 if lowest < 0.7 * highest else lowest, max(highest, 1.0))
    return _Scale(min(x for x, _ in points), max(x for x, _ in points), ticks[0], ticks[-1]), ticks


def _grid(drawing: _Drawing, scale: _Scale, ticks: Sequence[float], axis: Axis) -> None:
    power = min(int(math.log(max(abs(tick) for tick in ticks), 1024)), len(IEC_UNITS) - 1)
    for tick in ticks:
        y = scale.y(tick)
        drawing.shapes.append(_level("grid", y))
        drawing.words.append(_text(LEFT - 8, y + 4, f"{tick / 1024**power:g} {IEC_UNITS[power]}", "axis", anchor="end"))
    below = HEIGHT - BOTTOM + 18
    for mark in axis.ticks(scale.x_low, scale.x_high):
        x = scale.x(mark.x)
        drawing.words.append(_text(x, below, mark.text, "axis", anchor="middle", at=x))
    drawing.words.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, axis.name, "axis", anchor="middle"))


def _level(css: str, y: float) -> str:
    """A line from the left end of the plot to its right end."""
    return f'<line class="{css}" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _curve(line: ChartLine, scale: _Scale) -> str:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    return f'<polyline class="curve {line.css}" points="{path}"><title>{escape(line.title)}</title></polyline>'


def _area(line: ChartLine, scale: _Scale) -> str:
    base = scale.y(scale.y_low)
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    first, last = scale.x(line.points[0][0]), scale.x(line.points[-1][0])
    return (
        f'<polygon class="{line.css}" points="{first:.1f},{base:.1f} {path} {last:.1f},{base:.1f}">'
        f"<title>{escape(line.title)}</title></polygon>"
    )


def _fan(forecast: Forecast, ends: Sequence[Point], scale: _Scale) -> str:
    earliest, likely, latest = ends
    corners = (forecast.start, earliest, (latest[0], earliest[1]), latest)
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in corners)
    (x1, y1), (x2, y2) = forecast.start, likely
    return (
        f'<polygon class="fan" points="{path}"/><line class="likely" x1="{scale.x(x1):.1f}" y1="{scale.y(y1):.1f}" '
        f'x2="{scale.x(x2):.1f}" y2="{scale.y(y2):.1f}"/>'
    )


def _mark(drawing: _Drawing, mark: ChartMark, row: int, scale: _Scale) -> None:
    """Draw a mark with its words above the plot, each in a row of its own, on the side with room."""
    x, y = scale.x(mark.x), 14 + MARK_ROW * row
    left_half = x < (LEFT + WIDTH - RIGHT) / 2
    drawing.shapes.append(
        f'<line class="mark {mark.css}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 10:g}" y2="{HEIGHT - BOTTOM:g}"/>'
    )
    beside, anchor = (5, "start") if left_half else (-5, "end")
    drawing.words.append(_text(x + beside, y, mark.text, "mark", anchor=anchor, at=x))


def _span(drawing: _Drawing, span: ChartSpan, scale: _Scale) -> None:
    left, right = scale.x(max(span.start, scale.x_low)), scale.x(min(span.end, scale.x_high))
    if right < left:
        return
    height, middle = HEIGHT - BOTTOM - scale.top, (left + right) / 2
    drawing.shapes.append(
        f'<rect class="span" x="{left:.1f}" y="{scale.top:g}" width="{right - left:.1f}" height="{height:g}"/>'
    )
    drawing.words.append(_text(middle, HEIGHT - BOTTOM - 8, span.text, "mark", anchor="middle", at=middle))


def _readouts(readouts: Sequence[Readout], scale: _Scale) -> list[str]:
    """Strips around each x, with their words in the line below the axis."""
    if not readouts:
        return []
    at = [scale.x(readout.x) for readout in readouts]
    edges = [at[0], *((one + other) / 2 for one, other in pairwise(at)), at[-1]]
    box = f'y="{scale.top:g}" height="{HEIGHT - BOTTOM - scale.top:g}"'
    strips = (
        f'<g><rect x="{left:.1f}" width="{right - left:.1f}" {box}/>'
        f"{_text(WIDTH - RIGHT, HEIGHT + READOUT_ROW - 8, readout.text, 'readout', anchor='end')}</g>"
        for readout, (left, right) in zip(readouts, pairwise(edges), strict=True)
    )
    return ['<g class="readouts">', *strips, "</g>"]


def _limit(drawing: _Drawing, limit: float, scale: _Scale) -> None:
    y = scale.y(limit)
    drawing.shapes.append(_level("limit", y))
    drawing.words.append(_text(WIDTH - RIGHT - 4, y - 6, f"limit {format_bytes(limit)}", "limit", anchor="end"))


def _labels(lines: Iterable[ChartLine], scale: _Scale) -> list[str]:
    """Names at the ends of the curves, pushed apart where they would overlap; without room for all, those on top."""
    room = int((HEIGHT - scale.top - BOTTOM) / LABEL_HEIGHT)
    named = [(scale.y(line.points[-1][1]), line.label, line.css) for line in lines if line.label and line.points]
    wanted = sorted(named[-room:], key=lambda name: name[0])
    heights: list[float] = []
    for y, _, _ in wanted:
        heights.append(max(y, heights[-1] + LABEL_HEIGHT) if heights else y)
    lowest = HEIGHT - BOTTOM
    for index in reversed(range(len(heights))):
        heights[index] = min(heights[index], lowest)
        lowest = heights[index] - LABEL_HEIGHT
    return [
        _text(WIDTH - RIGHT + 8, y + 4, label, f"name {css}")
        for y, (_, label, css) in zip(heights, wanted, strict=True)
    ]


def _text(x: float, y: float, words: str, css: str, *, anchor: str = "start", at: float | None = None) -> str:
    """A text; ``at`` is the x that it belongs to."""
    belongs = "" if at is None else f' data-x="{at:.1f}"'
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{belongs}>{escape(words)}</text>'
