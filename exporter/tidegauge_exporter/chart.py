"""Lines over training steps as inline SVG: no script, no font, no colour of its own (classes, see report.css)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape

from tidegauge.core.units import IEC_UNITS, format_bytes

WIDTH, HEIGHT = 960.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 78.0, 92.0, 46.0, 42.0
POINTS_PER_CURVE = (60, 480)
"""Fewest and most. 480 is about one every other pixel; with hundreds of curves nobody sees more than their band."""
POINTS_IN_ALL = 24_000
"""What keeps the file of a large job around a few hundred kB."""
LABEL_HEIGHT = 15.0

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve. ``points`` are (step, bytes) in order; ``css`` names its look; ``label`` is written at its end."""

    points: Sequence[Point]
    css: str
    title: str
    label: str | None = None
    shaded_from: float | None = None
    """A step from which the gain over the value there is shaded."""


@dataclass(frozen=True)
class Mark:
    """A vertical line at a step, with a few words."""

    step: float
    text: str
    css: str


@dataclass(frozen=True)
class _Scale:
    """From data to the drawing."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, step: float) -> float:
        return LEFT + (step - self.x_low) / ((self.x_high - self.x_low) or 1) * (WIDTH - LEFT - RIGHT)

    def y(self, count: float) -> float:
        return HEIGHT - BOTTOM - (count - self.y_low) / (self.y_high - self.y_low) * (HEIGHT - TOP - BOTTOM)


def draw(lines: Sequence[Line], *, marks: Sequence[Mark] = (), limit: float | None = None, description: str) -> str:
    """The chart. ``limit`` (bytes) is drawn where the curves come near it, else it would flatten them."""
    points = [point for line in lines for point in line.points]
    if not points:
        return '<p class="muted">No readings.</p>'
    highest = max(y for _, y in points)
    near = limit if limit is not None and highest >= 0.6 * limit else None
    scale, ticks = _fit(points, highest if near is None else max(highest, near))
    fewest, most = POINTS_PER_CURVE
    lines = [
        replace(line, points=thin(line.points, max(fewest, min(most, POINTS_IN_ALL // len(lines))))) for line in lines
    ]
    parts = [
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(description)}">',
        *_grid(scale, ticks),
        *(_shade(line, scale) for line in lines if line.shaded_from is not None),
        *(_mark(mark, row, scale) for row, mark in enumerate(marks)),
    ]
    if near is not None:
        parts.append(_limit(near, scale))
    parts.extend(_curve(line, scale) for line in lines if line.points)
    parts.extend(_labels(lines, scale))
    return "\n".join([*parts, "</svg>"])


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """At most about ``most`` points that look the same: lowest and highest of each stretch, in order, and both ends."""
    if len(points) <= most:
        return list(points)
    stretch = math.ceil(len(points) / (most // 2))
    kept = {0, len(points) - 1}
    for start in range(0, len(points), stretch):
        indexes = range(start, min(start + stretch, len(points)))
        kept.add(min(indexes, key=lambda index: points[index][1]))
        kept.add(max(indexes, key=lambda index: points[index][1]))
    return [points[index] for index in sorted(kept)]


def byte_ticks(low: float, high: float) -> list[float]:
    """Four to seven ticks around ``low`` .. ``high``, the outer ones included, a power of two bytes apart."""
    size = 2.0 ** math.ceil(math.log2(max((high - low) / 6, 1.0)))
    first = math.floor(low / size)
    last = max(math.ceil(high / size), first + 1)
    return [index * size for index in range(first, last + 1)]


def step_ticks(low: float, high: float) -> list[float]:
    """Round steps inside ``low`` .. ``high``."""
    rough = max((high - low) / 8, 1.0)
    power = 10.0 ** math.floor(math.log10(rough))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    return [index * size for index in range(math.ceil(low / size), math.floor(high / size) + 1)]


def _fit(points: Sequence[Point], highest: float) -> tuple[_Scale, list[float]]:
    """The axis begins at 0 unless all curves stay in the upper part, where that would hide their shape."""
    lowest = min(y for _, y in points)
    ticks = byte_ticks(0.0 if lowest < 0.7 * highest else lowest, max(highest, 1.0))
    return _Scale(min(x for x, _ in points), max(x for x, _ in points), ticks[0], ticks[-1]), ticks


def _grid(scale: _Scale, ticks: Sequence[float]) -> list[str]:
    parts = []
    power = min(int(math.log(max(abs(tick) for tick in ticks), 1024)), len(IEC_UNITS) - 1)
    for tick in ticks:
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick / 1024**power:g} {IEC_UNITS[power]}", "axis", anchor="end"))
    below = HEIGHT - BOTTOM + 18
    steps = step_ticks(scale.x_low, scale.x_high)
    parts.extend(_text(scale.x(tick), below, f"{tick:,.0f}", "axis", anchor="middle") for tick in steps)
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "training step", "axis", anchor="middle"))
    return parts


def _curve(line: Line, scale: _Scale) -> str:
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    return f'<polyline class="curve {line.css}" points="{path}"><title>{escape(line.title)}</title></polyline>'


def _shade(line: Line, scale: _Scale) -> str:
    inside = [point for point in line.points if line.shaded_from is not None and point[0] >= line.shaded_from]
    if len(inside) < 2:
        return ""
    base = scale.y(inside[0][1])
    path = " ".join(f"{scale.x(x):.1f},{min(scale.y(y), base):.1f}" for x, y in inside)
    first, last = scale.x(inside[0][0]), scale.x(inside[-1][0])
    return f'<polygon class="gain {line.css}" points="{first:.1f},{base:.1f} {path} {last:.1f},{base:.1f}"/>'


def _mark(mark: Mark, row: int, scale: _Scale) -> str:
    """The words stand above the plot, each mark's in a row of its own, on the side where there is room."""
    x, y = scale.x(mark.step), 14 + 16.0 * row
    left_half = x < (LEFT + WIDTH - RIGHT) / 2
    words = _text(x + (5 if left_half else -5), y, mark.text, "mark", anchor="start" if left_half else "end")
    return f'<line class="mark {mark.css}" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 10:g}" y2="{HEIGHT - BOTTOM:g}"/>{words}'


def _limit(limit: float, scale: _Scale) -> str:
    y = scale.y(limit)
    words = _text(WIDTH - RIGHT - 4, y - 6, f"limit {format_bytes(limit)}", "limit", anchor="end")
    return f'<line class="limit" x1="{LEFT:g}" x2="{WIDTH - RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>{words}'


def _labels(lines: Iterable[Line], scale: _Scale) -> list[str]:
    """Names at the ends of the curves, pushed apart where they would cover each other; if there is no room for all,
    those of the curves on top.
    """
    room = int((HEIGHT - TOP - BOTTOM) / LABEL_HEIGHT)
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


def _text(x: float, y: float, words: str, css: str, *, anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
