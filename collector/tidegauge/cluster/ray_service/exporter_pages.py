"""Makes the exporter's pages for the coordinator's HTTP API."""

from __future__ import annotations

import time

from tidegauge.cluster.ray_service.coordinator_service import Pages
from tidegauge.core.persons.pseudonyms import Pseudonyms
from tidegauge.settings import Settings
from tidegauge_exporter.links import Links
from tidegauge_exporter.metrics.families import ServiceRegistry
from tidegauge_exporter.metrics.jobs import job_metrics
from tidegauge_exporter.metrics.service_discovery import http_sd
from tidegauge_exporter.reports.act_page import render_act_page
from tidegauge_exporter.reports.grade_page import render_no_question, render_question
from tidegauge_exporter.reports.login_page import render_login, render_logout
from tidegauge_exporter.reports.report import report_parts
from tidegauge_exporter.reports.report_content import incident_content
from tidegauge_exporter.runbooks.page import runbooks_html


def exporter_pages(settings: Settings, *, pseudonyms: Pseudonyms | None = None, has_notifier: bool = False) -> Pages:
    """``has_notifier``: a notifier beside the coordinator serves ``/metrics``, too."""
    cluster, links = settings.cluster, Links(grafana_url=settings.grafana_url, service_url=settings.pages_url)
    service = ServiceRegistry()
    return Pages(
        job_metrics=lambda jobs, loop, now_unix_s, accept: job_metrics(
            jobs,
            cluster=cluster,
            now_unix_s=now_unix_s,
            linger_s=settings.linger_s,
            accept=accept,
            loop=loop,
            service=service,
            shown_user=str if pseudonyms is None else pseudonyms.of,
        ),
        http_sd=lambda nodes, own: http_sd(
            nodes,
            cluster=cluster,
            coordinator_address=own,
            # A free port that the notifier picked is known to itself alone.
            notifier_port=(settings.notify_port or None) if has_notifier else None,
        ),
        incident_report=lambda story: report_parts(
            incident_content(
                story,
                made_unix_s=time.time(),
                keep_snapshots_s=settings.keep_snapshots_s,
                cluster=cluster,
                links=links,
            ),
        ),
        grade=lambda asked: (
            render_no_question()
            if asked is None
            else render_question(asked.incident, asked.answers, asked.viewer, yours=asked.yours, links=links)
        ),
        act=lambda asked: render_act_page(
            asked.incident, asked.acts, asked.viewer, now_unix_s=asked.now_unix_s, said=asked.said, links=links
        ),
        runbooks=lambda: runbooks_html(settings.contact),
        login=lambda asked: render_login(
            asked.methods, next_path=asked.next_path, viewer=asked.viewer, problem=asked.problem, goes_on=asked.goes_on
        ),
        logout=render_logout,
    )
