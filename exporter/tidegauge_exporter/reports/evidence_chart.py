"""What the report's plot of memory shows, worked out before anything is drawn. Pure.

The layers of an incident are those of its message in Slack (``messages.plot_values``), so that both show the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from operator import add
from typing import Final, NamedTuple

from tidegauge.core.evidence import Evidence
from tidegauge.core.incidents.actions import ActionKind, DecisionRecord, Outcome
from tidegauge.core.memory_history import MemoryPoint
from tidegauge.core.verdicts import Band, LeakState, Signal
from tidegauge_exporter.messages.action_text import deed
from tidegauge_exporter.messages.plot_values import FORECAST_PER_HISTORY, Layer, Plot, plot_values
from tidegauge_exporter.reports.evidence_values import RankCurve, ReportContent

_DEEDS: Final = {
    ActionKind.CAP: "cap set",
    ActionKind.CHECKPOINT: "state saved",
    ActionKind.REQUEUE: "started again",
    ActionKind.CANCEL: "ended",
    ActionKind.HOLD: "held",
}
"""What changes the job and is worth a mark; to be told is not."""


class ChartMoment(NamedTuple):
    """A mark on the plot; ``tone`` is a class of report.css."""

    x: float
    text: str
    tone: str


class Span(NamedTuple):
    """A stretch of the plot that was something of its own."""

    start: float
    end: float
    text: str


class ForecastFan(NamedTuple):
    """The forecast: from one point of the plot to the limit, soonest, likely and latest (may be infinite)."""

    x: float
    from_bytes: float
    ends: Band
    until: float
    """Where the drawing of it ends."""


class MemoryChart(NamedTuple):
    """``x`` are unix seconds, or training steps where ``by_step``."""

    x: tuple[float, ...]
    steps: tuple[int, ...]
    """Training step at each ``x``."""
    by_step: bool
    layers: tuple[Layer, ...]
    """From the bottom. Their sum is what the rank takes of its GPU."""
    limit_bytes: int | None
    fan: ForecastFan | None
    moments: tuple[ChartMoment, ...]
    spans: tuple[Span, ...]

    def tops(self) -> list[tuple[float, ...]]:
        """The upper edge of each layer."""
        return list(
            accumulate((layer.bytes_each for layer in self.layers), lambda below, here: tuple(map(add, below, here)))
        )


def memory_chart(content: ReportContent) -> MemoryChart | None:
    """Of the rank to look at first; ``None`` where its readings are not known."""
    story = content.story
    if story is not None:
        plot = plot_values(story, now_unix_s=content.made_unix_s)
        return None if plot is None else _of_plot(plot, content)
    return _of_curve(content.ranks[0], content) if content.ranks else None


def _of_plot(plot: Plot, content: ReportContent) -> MemoryChart:
    story = content.story
    assert story is not None, "the plot is made of it"
    steps = {point.at_unix_s: point.step for point in story.memory}
    shown = [place for place, at_s in enumerate(plot.at_unix_s) if at_s >= plot.from_unix_s]
    marks = [
        (plot.onset_unix_s, "growth begins", "onset"),
        (story.incident.opened_unix_s, "incident opened", "alarm"),
        (plot.oom_unix_s, "out of memory", "alarm"),
        (plot.stopped_unix_s, "it stopped", "onset"),
        *_deeds(story.decisions),
    ]
    fan = plot.fan
    return MemoryChart(
        x=tuple(plot.at_unix_s[place] for place in shown),
        steps=tuple(steps[plot.at_unix_s[place]] for place in shown),
        by_step=False,
        layers=tuple(
            replace(layer, bytes_each=tuple(layer.bytes_each[place] for place in shown)) for layer in plot.layers
        ),
        limit_bytes=plot.limit_bytes,
        fan=None if fan is None else ForecastFan(fan.from_unix_s, fan.from_bytes, fan.ends_unix_s, plot.to_unix_s),
        moments=_inside(marks, plot.from_unix_s, plot.to_unix_s),
        spans=_window(content.evidence, by_step=False),
    )


def _of_curve(curve: RankCurve, content: ReportContent) -> MemoryChart | None:
    points, verdict, by_step = curve.points, curve.verdict, content.by_step
    if len(points) < 2:
        return None
    x = tuple(float(point.step) if by_step else point.at_unix_s for point in points)
    steps = [point.step for point in points]
    marks = [
        (_at_step(x, steps, verdict.onset_step), "growth begins", "onset"),
        (_at_step(x, steps, verdict.alarm_step), "growth established", "alarm"),
    ]
    layers = _layers(points, verdict.signal if verdict.state is not LeakState.OK else None)
    chart = MemoryChart(
        x=x,
        steps=tuple(steps),
        by_step=by_step,
        layers=layers,
        limit_bytes=curve.limit_bytes,
        fan=None,
        moments=_inside(marks, x[0], x[-1]),
        spans=_window(content.evidence, by_step=by_step),
    )
    left = verdict.steps_to_oom if by_step else verdict.seconds_to_oom
    return chart._replace(fan=_fan(chart, left)) if verdict.state is not LeakState.OK else chart


def _layers(points: Sequence[MemoryPoint], grows: Signal | None) -> tuple[Layer, ...]:
    """As ``messages.plot_values`` stacks them: what grows on top of what does not."""
    tensors = Layer(
        "live tensors", "allocated", tuple(float(point.allocated_bytes) for point in points),
        grows is Signal.ALLOCATED,
    )  # fmt: skip
    cache = Layer(
        "held by PyTorch, not in use",
        "cached",
        tuple(float(max(point.reserved_bytes - point.allocated_bytes, 0)) for point in points),
        grows is Signal.RESERVED,
    )
    outside = Layer(
        "outside PyTorch", "nontorch", tuple(float(point.nontorch_bytes or 0) for point in points),
        grows is Signal.NONTORCH,
    )  # fmt: skip
    order = (tensors, cache, outside) if outside.grows else (outside, tensors, cache)
    return tuple(layer for layer in order if any(layer.bytes_each))


def _fan(chart: MemoryChart, left: Band | None) -> ForecastFan | None:
    growing = next((index for index, layer in enumerate(chart.layers) if layer.grows), None)
    if left is None or growing is None or chart.limit_bytes is None:
        return None
    last, top = chart.x[-1], chart.tops()[growing][-1]
    if top >= chart.limit_bytes:
        return None
    until = last + min(left.likely, (last - chart.x[0]) * FORECAST_PER_HISTORY)
    return ForecastFan(last, top, Band(*(last + part for part in left)), until)


def _deeds(records: Iterable[DecisionRecord]) -> list[tuple[float | None, str, str]]:
    return [
        (deed(record).at_unix_s, _DEEDS[record.decision.action], "onset")
        for record in records
        if record.decision.action in _DEEDS and record.outcome is Outcome.DONE
    ]


def _window(evidence: Evidence | None, *, by_step: bool) -> tuple[Span, ...]:
    """Between the two snapshots."""
    if evidence is None or evidence.early_step is None or evidence.late_step is None:
        return ()
    if by_step:
        return (Span(evidence.early_step, evidence.late_step, "snapshots compared"),)
    taken_s = {ref.step: ref.at_unix_s for ref in evidence.snapshots}
    start_s, end_s = taken_s.get(evidence.early_step), taken_s.get(evidence.late_step)
    return () if start_s is None or end_s is None else (Span(start_s, end_s, "snapshots compared"),)


def _at_step(x: Sequence[float], steps: Sequence[int], step: int | None) -> float | None:
    if step is None:
        return None
    return next((at for at, here in zip(x, steps, strict=True) if here >= step), None)


def _inside(marks: Iterable[tuple[float | None, str, str]], first: float, last: float) -> tuple[ChartMoment, ...]:
    return tuple(ChartMoment(x, text, tone) for x, text, tone in marks if x is not None and first <= x <= last)
