"""The report's plots: SVG for paper and for a browser that runs no script, and values for the page's script."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Final

from tidegauge.core.incidents.wording import rate
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.reports.chart import ChartLine, ChartMark, Forecast, draw, thin
from tidegauge_exporter.reports.chart_axes import STEPS, TIME
from tidegauge_exporter.reports.evidence_chart import MemoryChart
from tidegauge_exporter.reports.evidence_values import RankCurve
from tidegauge_exporter.reports.html_page import legend
from tidegauge_exporter.reports.rank_table import tone

MAX_RANKS: Final = 64
"""Small plots on a page; the odd ranks come first."""
MAX_MARKS: Final = 4
"""Rows of words above the drawn plot; the script's shows all."""
_WIDTH, _HEIGHT = 200.0, 72.0
_POINTS = 120
"""Of one small plot: more than its width in pixels says no more."""


def memory_plot(chart: MemoryChart, description: str) -> str:
    """Markup: the layers, the limit and the forecast."""
    tops = chart.tops()
    lines = [
        ChartLine(
            list(zip(chart.x, top, strict=True)),
            css=f"area {layer.kind}{' grows' if layer.grows else ''}",
            title=layer.label,
            filled=True,
        )
        for layer, top in zip(chart.layers, tops, strict=True)
    ][::-1]
    fan = chart.fan
    drawn = draw(
        lines,
        marks=[ChartMark(moment.x, moment.text, moment.tone) for moment in chart.moments[-MAX_MARKS:]],
        limit=chart.limit_bytes,
        forecast=None if fan is None else Forecast((fan.x, fan.from_bytes), *fan.ends, until=fan.until),
        until=None if fan is None else fan.until,
        axis=STEPS if chart.by_step else TIME,
        description=description,
    )
    looks = [(line.css, line.title) for line in reversed(lines)]
    looks += [("likely", "forecast: likely, and from the earliest to the latest")] * (fan is not None)
    return f'{legend(looks)}\n<div class="scroll">{drawn}</div>'


def memory_values(chart: MemoryChart) -> dict[str, Any]:
    """For the script. What is infinite is null."""
    fan = chart.fan
    return {
        "by_step": chart.by_step,
        "x": chart.x,
        "steps": chart.steps,
        "layers": [
            {
                "name": layer.label,
                "kind": layer.kind,
                "grows": layer.grows,
                "bytes": [round(b) for b in layer.bytes_each],
            }
            for layer in chart.layers
        ],
        "limit": chart.limit_bytes,
        "fan": None
        if fan is None
        else {
            "x": fan.x,
            "bytes": fan.from_bytes,
            "ends": [end if math.isfinite(end) else None for end in fan.ends],
            "until": fan.until,
        },
        "moments": [moment._asdict() for moment in chart.moments],
        "spans": [span._asdict() for span in chart.spans],
    }


def rank_plots(ranks: Sequence[RankCurve], *, by_step: bool) -> str:
    """Small plots side by side, on one scale, so that the odd rank is seen."""
    shown = [rank for rank in ranks if len(rank.points) > 1][:MAX_RANKS]
    if not shown:
        return ""
    highest = max(point.used_bytes for rank in shown for point in rank.points) or 1
    times = [_x(point, by_step) for rank in shown for point in rank.points]
    cells = "\n".join(
        _rank_plot(rank, highest=highest, first=min(times), last=max(times), by_step=by_step) for rank in shown
    )
    rest = len(ranks) - len(shown)
    more = f" {rest:,} more ranks are not shown." if rest else ""
    note = (
        f"All on one scale, up to {format_bytes(highest)}: live tensors filled, what the rank holds in all as a line."
        f"{more}"
    )
    return f'<div class="ranks">\n{cells}\n</div>\n<p class="muted">{note}</p>'


def _rank_plot(rank: RankCurve, *, highest: int, first: float, last: float, by_step: bool) -> str:
    def place(x: float, count: int) -> tuple[float, float]:
        return (x - first) / ((last - first) or 1) * _WIDTH, _HEIGHT - count / highest * (_HEIGHT - 2)

    live = thin([place(_x(point, by_step), point.allocated_bytes) for point in rank.points], _POINTS)
    used = thin([place(_x(point, by_step), point.used_bytes) for point in rank.points], _POINTS)
    verdict, growing = rank.verdict, rank.verdict.state is not LeakState.OK
    grows = " grows" if growing else ""
    said = f"{rate(verdict.bytes_per_step)} per step" if growing and verdict.bytes_per_step else verdict.state.value
    peak = f"rank {rank.rank}: at most {format_bytes(max(point.used_bytes for point in rank.points))}"
    return (
        f'<figure class="rank{" odd" if rank.concerned else ""}"><figcaption><b>Rank {rank.rank}</b>'
        f'<span class="verdict tone-{tone(verdict)}">{escape(said)}</span>'
        f"<small>{escape(tidy(rank.place, 60))}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{peak}">'
        f'<polygon class="area allocated{grows}" points="{live[0][0]:.1f},{_HEIGHT:g} {_path(live)} '
        f'{live[-1][0]:.1f},{_HEIGHT:g}"/><polyline class="curve" points="{_path(used)}"/></svg></figure>'
    )


def _x(point: MemoryPoint, by_step: bool) -> float:
    return float(point.step) if by_step else point.at_unix_s


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
