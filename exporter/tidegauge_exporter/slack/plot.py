"""The forecast plot: memory of the rank to look at first, its limit, and when they meet.

No other module imports matplotlib. The picture has 1000 x 560 pixels and few, large words for telephones. Its dark
ground is readable on Slack's light theme as on its dark one.
"""

from __future__ import annotations

import gc
import io
import math
import threading
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.wording import capitalised, name_job, rank_place, rate
from tidegauge.core.units import IEC_UNITS, format_bytes
from tidegauge_exporter.messages.headlines import end_by_clock, end_by_time_left, headline
from tidegauge_exporter.messages.plot_values import Fan, Layer, Plot, plot_values
from tidegauge_exporter.messages.text import cut
from tidegauge_exporter.messages.untrusted import tamed
from tidegauge_exporter.messages.values import Story

WIDTH_PX, HEIGHT_PX, DPI = 1000, 560, 100
COLOURS: Final = 128
TITLE_SIZE, SUBTITLE_SIZE, LABEL_SIZE = 18, 15, 14
MAX_TITLE_CHARS, MAX_SUBTITLE_CHARS = 60, 88
"""Bounds of characters that fit the width."""

GROUND: Final = "#161b22"
TEXT: Final = "#f0f3f6"
FAINT: Final = "#a3adba"
GRID: Final = "#2a313c"
ALARM: Final = "#ff7b72"
CALM: Final = {"nontorch": "#57606f", "allocated": "#3b73ad", "cached": "#274058"}
GROWING: Final = "#a5701f"
GROWING_EDGE: Final = "#ffc861"

_TICK_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000)
_MAX_TICKS: Final = 7
_DAY_S: Final = 86400.0
_ROOM_ABOVE: Final = 1.16
"""Height of the axis, as a multiple of the limit, with room for words above it."""

_drawing = threading.Lock()
"""The lock for fonts and their caches, which all figures of a process share and matplotlib does not guard."""


def forecast_png(story: Story, *, now_unix_s: float) -> bytes | None:
    """The picture as PNG; ``None`` if there is nothing to draw (fewer than two points, or host memory)."""
    plot = plot_values(story, now_unix_s=now_unix_s)
    if plot is None:
        return None
    incident = tamed(story.incident)
    with _drawing:
        figure = Figure(figsize=(WIDTH_PX / DPI, HEIGHT_PX / DPI), dpi=DPI, facecolor=GROUND)
        try:
            FigureCanvasAgg(figure)
            _draw(figure, plot, incident, now_unix_s)
            return _png(figure)
        finally:
            figure.clear()
            del figure
            # Figure and canvas hold each other, and 2.3 MiB of pixels. A quiet process looks for such garbage so seldom
            # that the notifier grew with every incident (tests/soak).
            gc.collect()


def _png(figure: Figure) -> bytes:
    """The PNG with a palette, a third of the bytes of full colour. Matplotlib writes PNG with Pillow, too."""
    pixels, png = io.BytesIO(), io.BytesIO()
    figure.savefig(pixels, format="rgba", facecolor=GROUND)
    drawn = Image.frombytes("RGBA", (WIDTH_PX, HEIGHT_PX), pixels.getvalue())
    drawn.convert("RGB").quantize(COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(png, "PNG")
    return png.getvalue()


def _draw(figure: Figure, plot: Plot, incident: Incident, now_unix_s: float) -> None:
    ends = (end_by_clock(incident, now_unix_s), end_by_time_left(incident, now_unix_s))
    titles = [headline(incident, None, end) for end in ends]
    fitting = next((title for title in titles if len(title) <= MAX_TITLE_CHARS), titles[-1])
    _write(figure, 0.945, cut(fitting, MAX_TITLE_CHARS), TEXT, TITLE_SIZE, bold=True)
    _write(figure, 0.882, cut(_subtitle(incident), MAX_SUBTITLE_CHARS), FAINT, SUBTITLE_SIZE)
    axes = figure.add_axes((0.1, 0.085, 0.88, 0.67))
    top_bytes = _top_bytes(plot)
    axes.set_xlim(plot.from_unix_s, plot.to_unix_s)
    axes.set_ylim(0.0, top_bytes)
    _dress(axes, plot, top_bytes)
    _draw_layers(axes, plot)
    if plot.limit_bytes is not None and plot.limit_bytes < top_bytes:
        _draw_limit(axes, plot, plot.limit_bytes)
        if plot.fan is not None:
            _draw_fan(axes, plot, plot.fan, plot.limit_bytes, ends[0])
    stopped = "stopped" if incident.is_open else "closed"
    for at_unix_s, words in ((plot.onset_unix_s, "growth began"), (plot.stopped_unix_s, stopped)):
        if at_unix_s is not None:
            _draw_moment(axes, plot, at_unix_s, words, top_bytes)
    if plot.oom_unix_s is not None:
        _draw_oom(axes, plot, plot.oom_unix_s, top_bytes)
    handles = [Patch(color=_colour(layer), label=_label(layer)) for layer in plot.layers]
    figure.legend(
        handles=handles, loc="center left", bbox_to_anchor=(0.012, 0.815), ncols=len(handles), frameon=False,
        fontsize=LABEL_SIZE, labelcolor=TEXT, handlelength=1.0, handleheight=0.9, columnspacing=1.4, handletextpad=0.5,
    )  # fmt: skip


def _draw_layers(axes: Axes, plot: Plot) -> None:
    floors = [0.0] * len(plot.at_unix_s)
    for layer in plot.layers:
        tops = [floor + own for floor, own in zip(floors, layer.bytes_each)]
        axes.fill_between(plot.at_unix_s, floors, tops, color=_colour(layer), linewidth=0)
        if layer.grows:
            axes.plot(plot.at_unix_s, tops, color=GROWING_EDGE, linewidth=2.5)
        floors = tops


def _draw_limit(axes: Axes, plot: Plot, limit_bytes: int) -> None:
    axes.axhline(limit_bytes, color=ALARM, linewidth=2.5)
    axes.annotate(
        f"limit {format_bytes(limit_bytes)}", (plot.from_unix_s, limit_bytes), xytext=(8, 6),
        textcoords="offset points", color=ALARM, size=LABEL_SIZE, weight="bold",
    )  # fmt: skip


def _draw_fan(axes: Axes, plot: Plot, fan: Fan, limit_bytes: int, end: str | None) -> None:
    start = (fan.from_unix_s, fan.from_bytes)
    soonest_s, likely_s, latest_s = fan.ends_unix_s
    later = (latest_s, limit_bytes) if latest_s != float("inf") else (plot.to_unix_s, fan.from_bytes)
    corners = [start, (soonest_s, limit_bytes), later]
    if later[1] != limit_bytes:
        corners.insert(2, (plot.to_unix_s, limit_bytes))
    axes.fill(*zip(*corners), color=ALARM, alpha=0.4, linewidth=0)
    if likely_s != float("inf"):
        axes.plot(*zip(start, (likely_s, limit_bytes)), color=ALARM, linewidth=2.5, linestyle=(0, (4, 2)))
    if end is not None:
        beyond = soonest_s > plot.to_unix_s
        _write_above(axes, plot, min(likely_s, plot.to_unix_s), limit_bytes, f"{end} \u2192" if beyond else end)


def _draw_moment(axes: Axes, plot: Plot, at_unix_s: float, words: str, top_bytes: float) -> None:
    """Draw a thin line over the whole height with its words at the foot, where the layers are wide and calm."""
    axes.vlines(at_unix_s, 0.0, top_bytes / _ROOM_ABOVE, color=TEXT, linewidth=1.5, linestyle=(0, (2, 2)))
    right = at_unix_s > (plot.from_unix_s + plot.to_unix_s) / 2
    axes.annotate(
        words, (at_unix_s, 0.06 * top_bytes), xytext=(-7 if right else 7, 0), textcoords="offset points",
        ha="right" if right else "left", va="center", color=TEXT, size=LABEL_SIZE,
    )  # fmt: skip


def _draw_oom(axes: Axes, plot: Plot, at_unix_s: float, top_bytes: float) -> None:
    level = min(plot.limit_bytes or top_bytes, top_bytes)
    axes.plot([at_unix_s], [level], marker="X", markersize=17, color=ALARM, markeredgecolor=TEXT, clip_on=False)
    _write_above(axes, plot, at_unix_s, level, f"out of memory {_time(at_unix_s, 0.0)} UTC")


def _write_above(axes: Axes, plot: Plot, at_unix_s: float, level: float, words: str) -> None:
    """Write words above the limit that end at the edge at the latest."""
    near_edge = at_unix_s > plot.to_unix_s - 0.2 * (plot.to_unix_s - plot.from_unix_s)
    axes.annotate(
        words, (plot.to_unix_s if near_edge else at_unix_s, level), xytext=(-4 if near_edge else 0, 12),
        textcoords="offset points", ha="right" if near_edge else "center", color=TEXT, size=LABEL_SIZE, weight="bold",
    )  # fmt: skip


def _dress(axes: Axes, plot: Plot, top_bytes: float) -> None:
    axes.set_facecolor(GROUND)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=FAINT, labelsize=LABEL_SIZE, length=0)
    axes.grid(visible=True, axis="y", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    unit_bytes, unit = _unit(top_bytes)
    axes.set_yticks(*_ticks(0.0, top_bytes, _nice_step(top_bytes / unit_bytes) * unit_bytes,
                            lambda value: f"{value / unit_bytes:g} {unit}"))  # fmt: skip
    span_s = plot.to_unix_s - plot.from_unix_s
    step_s = next((step for step in _TICK_STEPS_S if span_s / step <= _MAX_TICKS), span_s / _MAX_TICKS)
    axes.set_xticks(*_ticks(plot.from_unix_s, plot.to_unix_s, step_s, lambda at_s: _time(at_s, step_s)))


def _ticks(low: float, high: float, step: float, form: Callable[[float], str]) -> tuple[list[float], list[str]]:
    """Whole multiples of ``step`` and their labels; of times, none so near an edge that its label would be cut."""
    margin = 0.03 * (high - low) if low else 0.0
    numbers = range(math.ceil((low + margin) / step), math.floor((high - margin) / step) + 1)
    return [number * step for number in numbers], [form(number * step) for number in numbers]


def _nice_step(top: float) -> float:
    """The step for about four lines below ``top``: 1, 2, 5, 10, 20, ..."""
    return next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if top / step <= 6)


def _unit(top_bytes: float) -> tuple[float, str]:
    exponent = 0
    while top_bytes / 1024**exponent >= 1024 and exponent < len(IEC_UNITS) - 1:
        exponent += 1
    return float(1024**exponent), IEC_UNITS[exponent]


def _time(at_unix_s: float, step_s: float) -> str:
    when = datetime.fromtimestamp(at_unix_s, timezone.utc)
    return f"{when:%H:%M}" if step_s <= _DAY_S / 2 else f"{when.day} {when:%b}"


def _top_bytes(plot: Plot) -> float:
    """The top of the axis. It includes the limit only if memory comes near it or a forecast leads there."""
    highest = max(map(sum, zip(*(layer.bytes_each for layer in plot.layers))), default=0.0)
    if plot.limit_bytes is not None and (plot.fan is not None or highest >= 0.5 * plot.limit_bytes):
        return max(highest, plot.limit_bytes) * _ROOM_ABOVE
    return (highest or 1.0) * _ROOM_ABOVE


def _write(figure: Figure, height: float, words: str, colour: str, size: float, *, bold: bool = False) -> None:
    """Write a line of text, without formulas and characters that the font lacks: jobs choose names."""
    known = "".join(char if char.isascii() or char in "\u2013\u2026\u00b7" else "?" for char in words)
    weight = "bold" if bold else "normal"
    figure.text(0.02, height, known, color=colour, size=size, weight=weight, va="center", parse_math=False)


def _subtitle(incident: Incident) -> str:
    first = incident.findings[0]
    speed = rate(incident.bytes_per_step)
    place = rank_place(first.hostname, first.gpu)
    where = f"{capitalised(name_job(incident.called))}, rank {first.rank} on {place}"
    return where if speed is None else f"{where}: {speed} per step"


def _label(layer: Layer) -> str:
    return f"{layer.label} (grows)" if layer.grows else layer.label


def _colour(layer: Layer) -> str:
    return GROWING if layer.grows else CALM[layer.kind]
