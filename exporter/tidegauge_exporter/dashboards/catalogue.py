"""The dashboards and their files."""

from __future__ import annotations

import json

from tidegauge_exporter.dashboards import efficiency, fleet, incidents, job, node, rank
from tidegauge_exporter.dashboards.model.dashboard import Dashboard


def dashboards(service_url: str | None = None) -> tuple[Dashboard, ...]:
    """The dashboards in reading order.

    ``service_url``: the coordinator's API as people reach it (setting ``public_url``); without it nothing links to
    its web pages.
    """
    return (
        fleet.dashboard(service_url),
        job.dashboard(service_url),
        rank.dashboard(),
        node.dashboard(service_url),
        incidents.dashboard(service_url),
        efficiency.dashboard(),
    )


def files(service_url: str | None = None) -> dict[str, str]:
    """Content by file name, such as ``tidegauge-fleet.json``. The same code gives the same text."""
    return {
        f"{dashboard.uid}.json": json.dumps(dashboard.to_json(), indent=2, sort_keys=True) + "\n"
        for dashboard in dashboards(service_url)
    }
