"""What a message about an incident links to, whatever carries it. Pure."""

from __future__ import annotations

from typing import NamedTuple

from tidegauge.core.incidents import Incident
from tidegauge_exporter.links import Links

MAX_URL_CHARS = 3000
"""Slack's limit, which no address here comes near."""

BEFORE_S = 1800.0
"""A dashboard is opened on this much before the incident began, and as much after it ended."""


class Link(NamedTuple):
    """Something to click on; ``url=None``: nobody configured it, and it is left out."""

    label: str
    url: str | None


def chosen_links(incident: Incident, *, cluster: str, links: Links) -> list[Link]:
    """Dashboard, report, how to keep the job running, and the question whether it is a leak, as far as configured; of
    an incident that is not tamed."""
    job = incident.key.job
    ended_s = incident.closed_unix_s
    dashboard = links.job(
        cluster=cluster,
        job_id=job.job_id,
        attempt=job.attempt,
        from_unix_s=incident.opened_unix_s - BEFORE_S,
        to_unix_s=None if ended_s is None else ended_s + BEFORE_S,
    )
    chosen = [Link("Dashboard", dashboard), Link("Report", links.incident(incident.number))]
    if incident.is_open:
        chosen.append(Link("Keep my job running", links.exemption()))
    if incident.key.cause.is_growth:
        chosen.append(Link("Say whether it is a leak", links.grade(incident.number)))
    return [link for link in chosen if link.url is not None and is_web(link.url)]


def is_web(url: str) -> bool:
    """An address that a browser opens as a page, and that Slack takes."""
    shown = url.isprintable() and " " not in url
    return shown and len(url) <= MAX_URL_CHARS and url.startswith(("http://", "https://"))
