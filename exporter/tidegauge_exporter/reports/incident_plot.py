"""The plot of an incident: what the rank to look at first holds of its GPU over time, and how that would go on.

What is shown, and from when to when, is worked out in ``messages.plot_values``: a message and the page behind it show
the same.
"""

from __future__ import annotations

from itertools import accumulate
from operator import add

from tidegauge.core.incidents import IncidentCause
from tidegauge.core.incidents.wording import incident_sentence
from tidegauge_exporter.messages.plot_values import Plot, plot_values
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.chart import ChartLine, ChartMark, Forecast, draw
from tidegauge_exporter.reports.chart_axes import TIME
from tidegauge_exporter.reports.html_page import legend


def incident_plot(story: Story, *, now_unix_s: float) -> str:
    """Markup: the plot, or why there is none."""
    plot = plot_values(story, now_unix_s=now_unix_s)
    if plot is None:
        return f'<p class="muted">{_why_none(story.incident.key.cause)}</p>'
    lines = _lines(plot)
    chart = draw(
        lines,
        marks=_marks(plot, story),
        limit=plot.limit_bytes,
        forecast=_forecast(plot),
        until=plot.to_unix_s,
        axis=TIME,
        description=incident_sentence(story.incident),
    )
    looks = [(line.css, line.title) for line in reversed(lines)]
    if plot.fan is not None:
        looks.append(("likely", "forecast: likely, and from the earliest to the latest"))
    return f'{legend(looks)}\n<div class="scroll">{chart}</div>'


def _why_none(cause: IncidentCause) -> str:
    if cause is IncidentCause.HOST_MEMORY:
        return "It is memory of the host that grows, which is not on the GPU."
    return "No readings: the service keeps those of a rank in memory, while it lives and for a while after."


def _lines(plot: Plot) -> list[ChartLine]:
    """The tops of the layers, the highest first, so that each lies over those that it is a part of."""
    tops = accumulate((layer.bytes_each for layer in plot.layers), lambda below, here: tuple(map(add, below, here)))
    return [
        ChartLine(
            [(at_s, top) for at_s, top in zip(plot.at_unix_s, heights, strict=True) if at_s >= plot.from_unix_s],
            css=f"area {layer.kind}{' grows' if layer.grows else ''}",
            title=layer.label,
            filled=True,
        )
        for layer, heights in zip(plot.layers, tops, strict=True)
    ][::-1]


def _forecast(plot: Plot) -> Forecast | None:
    fan = plot.fan
    if fan is None:
        return None
    return Forecast((fan.from_unix_s, fan.from_bytes), *fan.ends_unix_s, until=plot.to_unix_s)


def _marks(plot: Plot, story: Story) -> list[ChartMark]:
    """What happened while the readings were taken: three things at most, as there are three rows for words."""
    happened = [
        (plot.onset_unix_s, "growth begins", "onset"),
        (story.incident.opened_unix_s, "incident opened", "alarm"),
        (plot.oom_unix_s, "out of memory", "alarm"),
        (plot.stopped_unix_s, "it stopped", "onset"),
    ]
    first_s, last_s = plot.from_unix_s, plot.to_unix_s
    return [
        ChartMark(at_s, text, css) for at_s, text, css in happened if at_s is not None and first_s <= at_s <= last_s
    ][-3:]
