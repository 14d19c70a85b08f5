"""The HTML report of one incident: a page that needs nothing beside itself, for whoever follows a link to it."""

from __future__ import annotations

from html import escape
from itertools import accumulate
from operator import add
from typing import Final

from tidegauge.core.incidents import Incident, IncidentCause
from tidegauge.core.incidents.wording import incident_sentence, job_and_run
from tidegauge_exporter.links import Links
from tidegauge_exporter.messages.headlines import noun, owners_job
from tidegauge_exporter.messages.plot_values import Plot, plot_values
from tidegauge_exporter.messages.text import tidy
from tidegauge_exporter.messages.untrusted import tamed_story
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.reports.chart import ChartLine, ChartMark, Forecast, draw
from tidegauge_exporter.reports.chart_axes import TIME
from tidegauge_exporter.reports.html_page import legend, meta, page, section
from tidegauge_exporter.reports.incident_sections import (
    deeds_section,
    evidence_section,
    history_section,
    lead_section,
    ranks_section,
)

# The plot of an incident: what the rank to look at first holds of its GPU over time, and how that would go on.
# What is shown, and from when to when, is worked out in ``messages.plot_values``: a message and the page behind it show
# the same.


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


LINKED_AROUND_S: Final = 1800.0
"""How much of the time before and after the incident a linked dashboard shows."""
MAX_PATH_CHARS: Final = 400

_KEEP_RUNNING: Final = (
    "Tidegauge ends or changes a job only where the site's policy says so, and never one that is exempt. Its owner "
    "exempts it when it is started: <code>tidegauge run --no-actions</code>, or for a Ray job the metadata "
    "<code>tidegauge.actions: off</code>. At any time: on Kubernetes by the annotation <code>tidegauge.dev/actions: "
    "keep</code> of the workload, on Slurm by <code>tidegauge:keep</code> in the job's comment. Other jobs that run "
    "already are exempted by an admin, at once. An exempt job is still watched, and fails by itself if its memory runs "
    "out."
)


def render_incident(story: Story, *, cluster: str, links: Links, now_unix_s: float) -> str:
    """The page as of ``now_unix_s``. Texts that a job or a scheduler chose are made short and visible, and escaped."""
    told = tamed_story(story)
    incident = told.incident
    facts = [
        ("Incident", str(incident.number)),
        ("Job", job_and_run(incident)),
        ("Name", incident.job_name),
        ("User", incident.user_name),
        ("Cluster", tidy(cluster, MAX_PATH_CHARS)),
    ]
    parts = [
        meta(facts, made_unix_s=now_unix_s),
        lead_section(incident, now_unix_s),
        _links(story.incident, cluster=cluster, links=links),
        evidence_section(incident),
        _plot(told, now_unix_s),
        ranks_section(incident),
        deeds_section(told.decisions, is_open=incident.is_open),
        history_section(told.history),
        _files(story.incident),
        _keep_running(links),
        "<footer>Made by Tidegauge. Times and rates are estimates; their ranges are given with them.</footer>",
    ]
    return page(f"{noun(incident)} in {owners_job(incident)} (incident {incident.number})", parts)


def _links(incident: Incident, *, cluster: str, links: Links) -> str:
    """The dashboards over the time of the incident, and the question whether it is a leak, as far as configured; of an
    incident that is not tamed."""
    job, ended_s = incident.key.job, incident.closed_unix_s
    from_unix_s = incident.opened_unix_s - LINKED_AROUND_S
    to_unix_s = None if ended_s is None else ended_s + LINKED_AROUND_S
    addresses = [
        (
            "The job in Grafana",
            links.job(
                cluster=cluster, job_id=job.job_id, attempt=job.attempt, from_unix_s=from_unix_s, to_unix_s=to_unix_s
            ),
        )
    ]
    addresses += [
        (
            f"Rank {finding.rank} in Grafana",
            links.rank(
                cluster=cluster, job_id=job.job_id, attempt=job.attempt, rank=finding.rank, from_unix_s=from_unix_s,
                to_unix_s=to_unix_s,
            ),
        )
        for finding in incident.findings[:1]
    ]  # fmt: skip
    if incident.key.cause.is_growth:
        addresses.append(("Say whether it is a leak", links.grade(incident.number)))
    made = [_link(words, url) for words, url in addresses if url is not None]
    return f'<nav class="links">{" ".join(made)}</nav>' if made else ""


def _link(words: str, url: str) -> str:
    """Addresses begin with what an admin configured; one that is no web address is not made clickable."""
    if not url.startswith(("https://", "http://")):
        return escape(words)
    return f'<a href="{escape(url)}" rel="noreferrer">{escape(words)}</a>'


def _plot(story: Story, now_unix_s: float) -> str:
    if not story.incident.findings:
        return ""
    first = story.incident.findings[0]
    where = first.hostname if first.gpu is None else f"{first.hostname}, GPU {first.gpu}"
    return section(f"GPU memory of rank {first.rank} ({where})", incident_plot(story, now_unix_s=now_unix_s))


def _files(incident: Incident) -> str:
    """Where snapshots and reports lie; of an incident that is not tamed."""
    paths = [tidy(path, MAX_PATH_CHARS) for path in (*incident.snapshots, *incident.reports)]
    items = "".join(f"<li><code>{escape(path)}</code></li>" for path in paths)
    return section("Snapshots and reports", f"<ul>{items}</ul>") if items else ""


def _keep_running(links: Links) -> str:
    url = links.exemption()
    more = f" {_link('More about exemptions', url)}" if url is not None else ""
    return section("How to keep the job running", f"<p>{_KEEP_RUNNING}{more}</p>")
