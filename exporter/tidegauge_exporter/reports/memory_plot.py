"""Charts of GPU memory over time: the rank to look at first with its forecast, and all ranks in small charts.

The layers of an incident are those of its message in Slack (``messages.plot_values``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents import CAUSE_OF_SIGNAL, IncidentCause
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Outcome
from tidegauge.core.incidents.wording import incident_sentence, rank_place, rate
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.units import format_bytes
from tidegauge.core.verdicts import LeakState, Signal
from tidegauge_exporter.messages.action_text import deed
from tidegauge_exporter.messages.plot_values import FORECAST_PER_HISTORY, Layer, Plot, memory_layers, plot_values
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.chart import STEPS, TIME, ChartLine, ChartMark, ChartSpan, Forecast, Readout, draw, thin
from tidegauge_exporter.reports.html_page import legend, moment, muted, section
from tidegauge_exporter.reports.incident_sections import tone
from tidegauge_exporter.reports.report_content import RankCurve, ReportContent

MAX_RANKS: Final = 64
"""Bound of small charts on a page; the affected ranks come first."""
MAX_MARKS: Final = 8
"""Bound of rows of words above the plot. The page lists every action with its time."""
MAX_READOUTS: Final = 120
_WIDTH, _HEIGHT = 200.0, 72.0
_POINTS = 120
"""Points of one small chart, about one for each pixel of its width."""
_DEEDS: Final = {
    ActionKind.CAP: "cap set",
    ActionKind.CHECKPOINT: "checkpoint saved",
    ActionKind.REQUEUE: "requeued",
    ActionKind.CANCEL: "canceled",
    ActionKind.HOLD: "held",
}
"""Marks of actions that change the job."""


class MemoryPlot(NamedTuple):
    """The chart of one rank. ``x`` are unix seconds, or training steps if ``by_step``."""

    x: Sequence[float]
    steps: Sequence[int]
    by_step: bool
    layers: Sequence[Layer]
    """Layers from the bottom, one value each ``x``. Their sum is the rank's memory on its GPU."""
    limit_bytes: int | None
    forecast: Forecast | None
    until: float
    marks: Sequence[ChartMark]
    spans: Sequence[ChartSpan]

    def tops(self) -> list[tuple[float, ...]]:
        """The upper edge of each layer."""
        return list(
            accumulate((layer.bytes_each for layer in self.layers), lambda below, here: tuple(map(add, below, here)))
        )


def memory_section(content: ReportContent) -> str:
    """The chart of the rank to look at first, or the reason why there is none. The story is tamed."""
    story = content.story
    if story is None:
        if not content.ranks:
            return ""
        rank, place = content.ranks[0].rank, tidy(content.ranks[0].place, 200)
    elif story.incident.findings:
        first = story.incident.findings[0]
        rank, place = first.rank, rank_place(first.hostname, first.gpu)
    else:
        return ""
    plot = memory_plot(content)
    if plot is None:
        return section(f"GPU memory of rank {rank} ({place})", "" if story is None else muted(_why_none(story)))
    description = "GPU memory over time" if story is None else incident_sentence(story.incident)
    return section(f"GPU memory of rank {rank} ({place})", _drawn(plot, description))


def memory_plot(content: ReportContent) -> MemoryPlot | None:
    """The chart; ``None`` if the readings of the rank to look at first are unknown."""
    if content.story is not None:
        plot = plot_values(content.story, now_unix_s=content.made_unix_s)
        return None if plot is None else _of_incident(plot, content.story, content.evidence)
    return _of_curve(content.ranks[0], content) if content.ranks else None


def _why_none(story: Story) -> str:
    if story.incident.key.cause is IncidentCause.HOST_MEMORY:
        return "No chart: host memory grows, not GPU memory."
    return "No readings: the service has none of this rank."


def _of_incident(plot: Plot, story: Story, evidence: Evidence | None) -> MemoryPlot:
    steps = {point.at_unix_s: point.step for point in story.memory}
    shown = [index for index, at_s in enumerate(plot.at_unix_s) if at_s >= plot.from_unix_s]
    times = [plot.at_unix_s[index] for index in shown]
    facts = [
        (plot.onset_unix_s, "growth begins", "onset"),
        (story.incident.opened_unix_s, "incident opened", "alarm"),
        (plot.oom_unix_s, "out of memory", "alarm"),
        (plot.stopped_unix_s, "stopped" if story.incident.is_open else "closed", "onset"),
    ]
    marks = _inside(facts, times[0], plot.to_unix_s)
    deeds = _inside(_deeds(story.decisions), times[0], plot.to_unix_s)
    fan = plot.fan
    return MemoryPlot(
        times,
        [steps[at_s] for at_s in times],
        by_step=False,
        layers=[
            Layer(layer.label, layer.kind, tuple(layer.bytes_each[index] for index in shown), layer.grows)
            for layer in plot.layers
        ],
        limit_bytes=plot.limit_bytes,
        forecast=None
        if fan is None
        else Forecast((fan.from_unix_s, fan.from_bytes), *fan.ends_unix_s, until=plot.to_unix_s),
        until=plot.to_unix_s,
        marks=[*marks, *deeds[-(MAX_MARKS - len(marks)) :]],
        spans=_window(evidence, by_step=False),
    )


def _of_curve(curve: RankCurve, content: ReportContent) -> MemoryPlot | None:
    points, verdict, by_step = curve.points, curve.verdict, content.by_step
    if len(points) < 2:
        return None
    x = [float(point.step) if by_step else point.at_unix_s for point in points]
    grows = verdict.state is not LeakState.OK
    layers = memory_layers(points, CAUSE_OF_SIGNAL[verdict.signal or Signal.ALLOCATED] if grows else None)
    facts = [(verdict.onset_step, "growth begins", "onset"), (verdict.alarm_step, "growth established", "alarm")]
    at_steps = [
        (next((at for at, point in zip(x, points, strict=True) if step is not None and point.step >= step), None),
         text, css)
        for step, text, css in facts
    ]  # fmt: skip
    plot = MemoryPlot(
        x,
        [point.step for point in points],
        by_step,
        layers,
        curve.limit_bytes,
        forecast=None,
        until=x[-1],
        marks=_inside(at_steps, x[0], x[-1]),
        spans=_window(content.evidence, by_step=by_step),
    )
    left = verdict.steps_to_oom if by_step else verdict.seconds_to_oom
    growing = next((index for index, layer in enumerate(layers) if layer.grows), None)
    if left is None or growing is None or curve.limit_bytes is None:
        return plot
    top, last = plot.tops()[growing][-1], x[-1]
    if top >= curve.limit_bytes:
        return plot
    until = last + min(left.likely, (last - x[0]) * FORECAST_PER_HISTORY)
    forecast = Forecast((last, top), last + left.low, last + left.likely, last + left.high, until)
    return plot._replace(forecast=forecast, until=until)


def _deeds(records: Iterable[DecisionRecord]) -> list[tuple[float | None, str, str]]:
    return [
        (deed(record).at_unix_s, _DEEDS[record.decision.action], "onset")
        for record in records
        if record.decision.action in _DEEDS and record.outcome is Outcome.DONE
    ]


def _inside(marks: Iterable[tuple[float | None, str, str]], first: float, last: float) -> list[ChartMark]:
    return [ChartMark(x, text, css) for x, text, css in marks if x is not None and first <= x <= last]


def _window(evidence: Evidence | None, *, by_step: bool) -> tuple[ChartSpan, ...]:
    if evidence is None or evidence.early_step is None or evidence.late_step is None:
        return ()
    start: float | None = evidence.early_step
    end: float | None = evidence.late_step
    if not by_step:
        taken_s = {ref.step: ref.at_unix_s for ref in evidence.snapshots}
        start, end = taken_s.get(evidence.early_step), taken_s.get(evidence.late_step)
    return () if start is None or end is None else (ChartSpan(start, end, "snapshots compared"),)


def _drawn(plot: MemoryPlot, description: str) -> str:
    """Markup of the chart. The highest layer comes first, so that each lies over those that it is a part of."""
    lines = [
        ChartLine(
            list(zip(plot.x, top, strict=True)),
            css=f"area {layer.kind}{' grows' if layer.grows else ''}",
            title=layer.label,
            filled=True,
        )
        for layer, top in zip(plot.layers, plot.tops(), strict=True)
    ][::-1]
    chart = draw(
        lines,
        marks=plot.marks,
        spans=plot.spans,
        readouts=_readouts(plot),
        limit=plot.limit_bytes,
        forecast=plot.forecast,
        until=plot.until,
        axis=STEPS if plot.by_step else TIME,
        description=description,
    )
    looks = [(line.css, line.title) for line in reversed(lines)]
    looks += [("likely", "forecast: likely, shaded from earliest to latest")] * (plot.forecast is not None)
    return f'{legend(looks)}\n<div class="scroll">{chart}</div>'


def _readouts(plot: MemoryPlot) -> list[Readout]:
    """Readouts at evenly spaced points, with the last one."""
    every = -(-len(plot.x) // MAX_READOUTS)
    shown = range(len(plot.x) - 1, -1, -every)[::-1]
    return [Readout(plot.x[index], _readout(plot, index)) for index in shown]


def _readout(plot: MemoryPlot, index: int) -> str:
    step = f"step {plot.steps[index]:,}"
    when = step if plot.by_step else f"{moment(plot.x[index], '%Y-%m-%d %H:%M:%S UTC')}, {step}"
    held = [f"{layer.label} {format_bytes(layer.bytes_each[index])}" for layer in plot.layers]
    total = format_bytes(sum(layer.bytes_each[index] for layer in plot.layers))
    return f"{when}: {'; '.join([*held, f'total {total}'])}"


def ranks_section(content: ReportContent) -> str:
    """Small charts side by side, on one scale, so that an odd rank stands out."""
    by_step = content.by_step
    shown = [rank for rank in content.ranks if len(rank.points) > 1][:MAX_RANKS]
    if len(content.ranks) < 2 or not shown:
        return ""
    highest = max(point.used_bytes for rank in shown for point in rank.points) or 1
    at = [_x(point, by_step) for rank in shown for point in rank.points]
    cells = "\n".join(_rank_plot(rank, highest=highest, first=min(at), last=max(at), by_step=by_step) for rank in shown)
    rest = len(content.ranks) - len(shown)
    more = f" {rest:,} more ranks not shown." if rest else ""
    note = f"Same scale, up to {format_bytes(highest)}. Area: live tensors. Line: everything the rank holds.{more}"
    return section("All ranks, affected ones first", f'<div class="ranks">\n{cells}\n</div>', muted(note))


def _rank_plot(rank: RankCurve, *, highest: int, first: float, last: float, by_step: bool) -> str:
    def place(x: float, count: int) -> tuple[float, float]:
        return (x - first) / ((last - first) or 1) * _WIDTH, _HEIGHT - count / highest * (_HEIGHT - 2)

    live = thin([place(_x(point, by_step), point.allocated_bytes) for point in rank.points], _POINTS)
    used = thin([place(_x(point, by_step), point.used_bytes) for point in rank.points], _POINTS)
    verdict, growing = rank.verdict, rank.verdict.state is not LeakState.OK
    said = f"{rate(verdict.bytes_per_step)} per step" if growing and verdict.bytes_per_step else verdict.state.value
    peak = f"rank {rank.rank}: peak {format_bytes(max(point.used_bytes for point in rank.points))}"
    return (
        f'<figure class="rank{" odd" if rank.concerned else ""}"><figcaption><b>Rank {rank.rank}</b>'
        f'<span class="verdict tone-{tone(verdict)}">{escape(said)}</span>'
        f"<small>{escape(tidy(rank.place, 60))}</small></figcaption>"
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" preserveAspectRatio="none" role="img" aria-label="{peak}">'
        f'<polygon class="area allocated{" grows" if growing else ""}" points="{live[0][0]:.1f},{_HEIGHT:g} '
        f'{_path(live)} {live[-1][0]:.1f},{_HEIGHT:g}"/><polyline class="curve" points="{_path(used)}"/></svg></figure>'
    )


def _x(point: MemoryPoint, by_step: bool) -> float:
    return float(point.step) if by_step else point.at_unix_s


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
