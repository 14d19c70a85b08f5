"""The Incidents dashboard: what is open, what there was, what was done about it, and whether the policy may act."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import (
    BY_INCIDENT,
    BY_JOB,
    FLEET,
    fleet,
    job_link,
    report_links,
    with_names,
)
from tidegauge_exporter.dashboards.incident_actions import actions, alerts, policy
from tidegauge_exporter.dashboards.model.curves import TimeSeries
from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    ANY_IS_BAD,
    BAD,
    CARE,
    COUNT,
    GOOD,
    PLAIN,
    SECONDS,
    SEVERITY_WORDS,
    TIME_LEFT,
    WHEN,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import Panel, Stat
from tidegauge_exporter.dashboards.model.queries import Query, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, TableColumn, Value
from tidegauge_exporter.dashboards.model.variables import CLUSTERS, DATA_SOURCE
from tidegauge_exporter.dashboards.reasons import NONE_OPEN, NOTHING_HAPPENED
from tidegauge_exporter.links import INCIDENTS as UID

_DATABASE: Final = "The coordinator does not answer, or its database is down."
_ROWS: Final = 50

_NUMBER: Final = f"max by ({BY_INCIDENT}) ({fleet('tidegauge_job_incident_number')})"


def _in_range(what: str) -> str:
    """Of each incident that was open in the range: the latest value; for the severity, the worst."""
    return f"max by ({BY_INCIDENT}) (max_over_time({fleet(f'tidegauge_job_incident_{what}')}[$__range]))"


_LATEST: Final = f"topk({_ROWS}, {_in_range('number')})"


def dashboard(service_url: str | None = None) -> Dashboard:
    """For the admin at night, and for the morning after."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Incidents",
        description="Open incidents, incidents of the time range, and actions of the policy.",
        variables=(DATA_SOURCE, CLUSTERS),
        rows=(
            Row("Now", (*_now(), _open(service_url))),
            Row("History", (*_history(), _all_in_range(service_url))),
            Row("Actions and the policy", actions()),
            Row("Alerts and notes", alerts()),
        ),
        marks=(TaggedMarks("Incidents and actions (Grafana)", (TAG,), "purple"),),
        hours=24,
    )


def _open_with(severity: str) -> str:
    return f'sum(tidegauge_incidents_open{{{FLEET}, severity="{severity}"}})'


def _now() -> tuple[Panel, ...]:
    opened = fleet("tidegauge_job_incident_opened_timestamp_seconds")
    return (
        Stat(
            "Critical",
            "Open critical incidents: a job runs out of memory within the hour or so, or already has.",
            4,
            4,
            (Query(_open_with("critical")),),
            Field(COUNT, "database down", ANY_IS_BAD, decimals=0),
        ),
        Stat(
            "Warnings",
            "Open incidents with severity warning: look today.",
            4,
            4,
            (Query(_open_with("warning")),),
            Field(COUNT, "database down", ThresholdSteps(GOOD, ((1, CARE),)), decimals=0),
        ),
        Stat(
            "Oldest open incident",
            "Age of the oldest open incident. If it is days old, exempt the job or write a rule for it.",
            4,
            4,
            (Query(f"time() - min({opened})", may_be_empty=NONE_OPEN),),
            Field(SECONDS, "none open", ThresholdSteps(PLAIN), decimals=1),
        ),
        Stat(
            "The policy",
            "Whether the policy may act on jobs. `observes`: decisions are logged, not carried out.",
            4,
            4,
            (Query(policy("acting")),),
            Field(COUNT, "coordinator down", words={0: ("observes", "blue"), 1: ("acts", GOOD)}),
        ),
        Stat(
            "Actions allowed",
            "`paused`: a person stopped all actions (`tidegauge policy resume` allows them again). `breaker`: too many "
            "jobs were acted on, and the circuit breaker stops all actions; find out why before you reset it.",
            4,
            4,
            (Query(f"max({fleet('tidegauge_policy_paused')} + 2 * {fleet('tidegauge_policy_breaker_open')})"),),
            Field(
                COUNT,
                "coordinator down",
                ThresholdSteps(GOOD, ((1, CARE), (2, BAD))),
                {0: ("yes", GOOD), 1: ("paused", CARE), 2: ("breaker", BAD), 3: ("breaker, paused", BAD)},
            ),
        ),
        Stat(
            "Database",
            "Stores incidents and decisions. While it is down, Tidegauge decides and does nothing.",
            4,
            4,
            (Query(f'min(tidegauge_collect_success{{{FLEET}, source="store"}})'),),
            Field(COUNT, "coordinator down", ThresholdSteps(BAD, ((1, GOOD),)), {0: ("down", BAD), 1: ("works", GOOD)}),
        ),
    )


def _incident_columns(service_url: str | None, number: Query) -> tuple[TableColumn, ...]:
    return (
        Value("Number", 85, report_links(service_url), query=number, unit=COUNT, decimals=0),
        Label("Cause", 150, label="cause"),
        Label("Job", label="job_id", links=(job_link(),)),
        Label("Name", label="job_name"),
        Label("User", 120, label="user_name"),
        Label("Attempt", 80, label="attempt"),
        Label("Cluster", 110, label="cluster"),
    )


def _open(service_url: str | None) -> Table:
    left = fleet("cluster_job:tidegauge_seconds_to_oom:min")
    severity = f"max by ({BY_INCIDENT}) ({fleet('tidegauge_job_incident_severity')})"
    opened = f"max by ({BY_INCIDENT}) ({fleet('tidegauge_job_incident_opened_timestamp_seconds')})"
    return Table(
        "Open now",
        "Worst first. The number links to the report if the dashboards know the service's address; else run "
        "`tidegauge incidents show NUMBER`. The job links to its ranks.",
        24,
        9,
        (
            *_incident_columns(service_url, Query(with_names(_NUMBER, by=BY_INCIDENT), may_be_empty=NONE_OPEN)),
            Value(
                "Severity",
                100,
                query=Query(severity, may_be_empty=NONE_OPEN),
                words=SEVERITY_WORDS,
            ),
            Value("Opened", 140, query=Query(f"1000 * {opened}", may_be_empty=NONE_OPEN), unit=AGO),
            Value(
                "Out of memory in",
                140,
                query=Query(f"0 * {_NUMBER} + on ({BY_JOB}) group_left () {left}", may_be_empty=NONE_OPEN),
                unit=SECONDS,
                steps=TIME_LEFT,
                decimals=1,
            ),
        ),
        "No open incidents.",
        sort_by="Severity",
        descending=True,
    )


def _history() -> tuple[Panel, ...]:
    return (
        TimeSeries(
            "Open incidents by cause",
            "Open incidents over time. Many of one cause at once: a new version of a library, or of a job that many "
            "people run.",
            12,
            8,
            (Query(f"sum by (cause) ({fleet('tidegauge_incidents_open')})", "{{cause}}"),),
            Field(COUNT, _DATABASE, least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
        ),
        TimeSeries(
            "Incidents opened",
            "Incidents opened per interval, by cause. A burst: look for a common change.",
            12,
            8,
            (Query(f"sum by (cause) (increase({fleet('tidegauge_incidents_total')}[$__rate_interval]))", "{{cause}}"),),
            Field(COUNT, _DATABASE, least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
            bars=True,
            legend_calculations=("sum",),
            smallest_step="5m",
        ),
    )


def _all_in_range(service_url: str | None) -> Table:
    return Table(
        "In the time range",
        f"The latest {_ROWS} incidents that were open in the range, newest first; the last one per attempt and cause. "
        "For all of them run `tidegauge incidents --all`.",
        24,
        9,
        (
            *_incident_columns(
                service_url,
                Query(with_names(_LATEST, by=BY_INCIDENT, over="$__range"), may_be_empty=NOTHING_HAPPENED),
            ),
            Value(
                "Peak severity",
                120,
                query=Query(f"{_in_range('severity')} and on ({BY_INCIDENT}) {_LATEST}", may_be_empty=NOTHING_HAPPENED),
                words=SEVERITY_WORDS,
            ),
            Value(
                "Opened",
                170,
                query=Query(
                    f"1000 * {_in_range('opened_timestamp_seconds')} and on ({BY_INCIDENT}) {_LATEST}",
                    may_be_empty=NOTHING_HAPPENED,
                ),
                unit=WHEN,
            ),
        ),
        "No incident in this time range.",
        sort_by="Number",
        descending=True,
    )
