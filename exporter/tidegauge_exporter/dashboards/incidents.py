"""The Incidents dashboard: open incidents, history, actions, the policy and alerts."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.model.dashboard import TAG, Dashboard, Row
from tidegauge_exporter.dashboards.model.fields import (
    AGO,
    ANY_IS_BAD,
    BAD,
    CARE,
    COUNT,
    GOOD,
    NOTE,
    PLAIN,
    QUIET,
    SECONDS,
    SEVERITY_WORDS,
    TIME_LEFT,
    WHEN,
    Field,
    ThresholdSteps,
)
from tidegauge_exporter.dashboards.model.panels import (
    AnnotationsList,
    Panel,
    Stat,
    StateTimeline,
    Text,
    TimeSeries,
)
from tidegauge_exporter.dashboards.model.queries import Query, TaggedMarks
from tidegauge_exporter.dashboards.model.tables import Label, Table, TableColumn, Value
from tidegauge_exporter.dashboards.model.variables import ACCOUNT, CLUSTERS, DATA_SOURCE, PARTITION, USER
from tidegauge_exporter.dashboards.shared import (
    BY_INCIDENT,
    BY_JOB,
    FLEET,
    NONE_OPEN,
    NOTHING_HAPPENED,
    actions_by_outcome,
    fleet,
    job_links,
    of_owners,
    open_by_cause,
    report_links,
    with_names,
)
from tidegauge_exporter.links import INCIDENTS as UID

_ROWS: Final = 50

_NUMBER: Final = f"max by ({BY_INCIDENT}) ({of_owners(fleet('tidegauge_job_incident_number'), over='$__range')})"


def _in_range(what: str) -> str:
    """The latest value of each incident that was open in the range; of the severity, the worst."""
    return f"max by ({BY_INCIDENT}) (max_over_time({fleet(f'tidegauge_job_incident_{what}')}[$__range]))"


_LATEST: Final = f"topk({_ROWS}, {of_owners(_in_range('number'), over='$__range')})"


def dashboard(service_url: str | None = None) -> Dashboard:
    """The dashboard for admins on call, and for reviews."""
    return Dashboard(
        uid=UID,
        title="Tidegauge / Incidents",
        description="Open incidents, incidents of the time range, and actions of the policy.",
        variables=(DATA_SOURCE, CLUSTERS, USER, ACCOUNT, PARTITION),
        rows=(
            Row("Now", (*_now(), _open(service_url), *_history())),
            Row("In the time range", (_all_in_range(service_url),)),
            Row("Actions and the policy", _actions(service_url)),
            Row("Alerts and notes", _alerts(service_url)),
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
            (4, 3),
            (Query(_open_with("critical")),),
            Field(COUNT, "database down", ANY_IS_BAD, decimals=0),
        ),
        Stat(
            "Warnings",
            "Open incidents with severity warning: look today.",
            (4, 3),
            (Query(_open_with("warning")),),
            Field(COUNT, "database down", ThresholdSteps(GOOD, ((1, CARE),)), decimals=0),
        ),
        Stat(
            "Oldest open incident",
            "Age of the oldest open incident. If it is days old, exempt the job or write a rule for it.",
            (4, 3),
            (Query(f"time() - min({opened})", may_be_empty=NONE_OPEN),),
            Field(SECONDS, "none open", ThresholdSteps(PLAIN), decimals=1),
        ),
        Stat(
            "The policy",
            "Whether the policy may act on jobs. `observes`: decisions are logged, not carried out.",
            (4, 3),
            (Query(_policy("acting")),),
            Field(COUNT, "coordinator down", words={0: ("observes", NOTE), 1: ("acts", GOOD)}),
        ),
        Stat(
            "Actions allowed",
            "`paused`: a person stopped all actions (`tidegauge policy resume` allows them again). `breaker`: too many "
            "jobs were acted on, and the circuit breaker stops all actions; find out why before you reset it.",
            (4, 3),
            (Query(f"max({fleet('tidegauge_policy_paused')} + 2 * {fleet('tidegauge_policy_breaker_open')})"),),
            Field(
                COUNT,
                "coordinator down",
                ThresholdSteps(GOOD, ((1, CARE), (2, BAD))),
                {0: ("yes", GOOD), 1: ("paused !!", CARE), 2: ("breaker !!!", BAD), 3: ("breaker, paused !!!", BAD)},
            ),
        ),
        Stat(
            "Database",
            "Stores incidents and decisions. While it is down, Tidegauge decides and does nothing.",
            (4, 3),
            (Query(f'min(tidegauge_collect_success{{{FLEET}, source="store"}})'),),
            Field(
                COUNT, "coordinator down", ThresholdSteps(BAD, ((1, GOOD),)), {0: ("down !!!", BAD), 1: ("works", GOOD)}
            ),
        ),
    )


def _incident_columns(service_url: str | None, number: Query) -> tuple[TableColumn, ...]:
    return (
        Value("Number", 85, report_links(service_url), query=number, unit=COUNT, decimals=0),
        Label("Cause", 150, label="cause"),
        Label("Job", label="job_id", links=job_links(service_url)),
        Label("Name", label="job_name"),
        Label("User", 120, label="user_name"),
        Label("Attempt", 80, label="attempt"),
        Label("Cluster", 110, label="cluster"),
    )


def _of_open(values: str) -> Query:
    """A query for a figure of the incidents in the table."""
    return Query(f"{values} and on ({BY_INCIDENT}) {_NUMBER}", may_be_empty=NONE_OPEN)


def _open(service_url: str | None) -> Table:
    left = fleet("cluster_job:tidegauge_seconds_to_oom:min")
    severity = f"max by ({BY_INCIDENT}) ({fleet('tidegauge_job_incident_severity')})"
    opened = f"max by ({BY_INCIDENT}) ({fleet('tidegauge_job_incident_opened_timestamp_seconds')})"
    return Table(
        "Open now",
        "Worst first. The number links to the report if the dashboards know the service's address; else run "
        "`tidegauge incidents show NUMBER`. The job links to its ranks.",
        (24, 6),
        (
            *_incident_columns(service_url, Query(with_names(_NUMBER, by=BY_INCIDENT), may_be_empty=NONE_OPEN)),
            Value("Severity", 110, query=_of_open(severity), words=SEVERITY_WORDS),
            Value("Opened", 140, query=_of_open(f"1000 * {opened}"), unit=AGO),
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
    # Zeros within the range stay: without them Grafana stacks bars of different widths.
    counted = f"increase({fleet('tidegauge_incidents_total')}"
    in_step, in_range = (
        f"round(sum by (cause) ({counted}[$__interval])))",
        f"sum by (cause) ({counted}[$__range] @ end()))",
    )
    return (
        open_by_cause(
            "Open incidents over time. Many of one cause at once: a new version of a library, or of a job that many "
            "people run.",
            (12, 6),
        ),
        TimeSeries(
            "Incidents opened",
            "Incidents opened per hour, by cause; of a long range, per longer time. A burst: look for a common change.",
            (12, 6),
            (Query(f"{in_step} and on (cause) {in_range} > 0", "{{cause}}", may_be_empty=NOTHING_HAPPENED),),
            Field(COUNT, "No incident was opened in the time range.", least=0, decimals=0),
            stacked=True,
            legend_on_the_right=True,
            bars=True,
            legend_calculations=("sum",),
            smallest_step="1h",
        ),
    )


def _all_in_range(service_url: str | None) -> Table:
    return Table(
        "Incidents of the time range",
        f"The latest {_ROWS} incidents that were open in the range, newest first; the last one per attempt and cause. "
        "For all of them run `tidegauge incidents --all`.",
        (24, 7),
        (
            *_incident_columns(
                service_url, Query(with_names(_LATEST, by=BY_INCIDENT, over="$__range"), may_be_empty=NOTHING_HAPPENED)
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


_COMMANDS: Final = """
| goal | command |
|---|---|
| stop all actions | `tidegauge policy pause --reason TEXT` |
| allow actions, reset the breakers | `tidegauge policy resume` |
| see why a job was stopped | `tidegauge incidents show NUMBER` |
| list decisions and actions | `tidegauge policy log --since 1d` |
| test another policy on past incidents | `tidegauge policy simulate FILE --since 7d` |
"""
_ALERTS: Final = f'ALERTS{{{FLEET}, alertname=~"Tidegauge.*", alertstate="firing"}}'


def _policy(what: str) -> str:
    """A figure of the policy, usually 1 or 0."""
    return f"max({fleet(f'tidegauge_policy_{what}')})"


def _actions(service_url: str | None) -> tuple[Panel, ...]:
    ended = fleet("tidegauge_job_last_action_timestamp_seconds")
    return (
        actions_by_outcome(
            "In the time range. `would` and `withheld` were not carried out: the mode does not allow it, or a brake "
            "held them. Check `failed`, `unverified` and `no_proof` with `tidegauge policy log`.",
            (8, 8),
        ),
        Table(
            "Latest action on each job",
            "The latest action of each kind and outcome.",
            (16, 8),
            (
                Label("Job", label="job_id", links=job_links(service_url)),
                Label("Attempt", 80, label="attempt"),
                Label("Cluster", 110, label="cluster"),
                Label("Action", 110, label="action"),
                Label("Outcome", 110, label="outcome"),
                Value(
                    "Ended",
                    170,
                    query=Query(
                        f"1000 * topk({_ROWS}, max by ({BY_JOB}, action, outcome) (max_over_time({ended}[$__range])))",
                        may_be_empty=NOTHING_HAPPENED,
                    ),
                    unit=WHEN,
                ),
            ),
            "No action ended in this time range.",
            sort_by="Ended",
            descending=True,
        ),
        StateTimeline(
            "Policy state over time",
            "When the policy could act, was paused by a person, or was stopped by a circuit breaker, for all jobs or "
            "for those of some users.",
            (13, 8),
            (
                Query(_policy("acting"), "may act"),
                Query(_policy("paused"), "paused"),
                Query(_policy("breaker_open"), "breaker open"),
                Query(f"clamp_max({_policy('user_breakers_open')}, 1)", "user breaker"),
            ),
            Field(
                COUNT,
                "The coordinator does not answer.",
                ThresholdSteps(QUIET, ((1, NOTE),)),
                {0: ("no", QUIET), 1: ("yes", NOTE)},
            ),
        ),
        Text("What you can do", "Commands for the head. This text is static.", (11, 8), _COMMANDS),
    )


def _alerts(service_url: str | None) -> tuple[Panel, ...]:
    return (
        Table(
            "Firing alerts",
            "Tidegauge alerts that fire in Prometheus now. Alertmanager may silence or group them; each has a runbook.",
            (14, 7),
            (
                Label("Alert", label="alertname"),
                Label("Severity", 95, label="severity"),
                Label("Job", 130, label="job_id", links=job_links(service_url)),
                Label("Attempt", 80, label="attempt"),
                Label("Cluster", 110, label="cluster"),
                Value(
                    "Series",
                    80,
                    query=Query(
                        f"count by (alertname, severity, {BY_JOB}) ({_ALERTS})",
                        may_be_empty="no alert fires, or the rules are in another Prometheus",
                    ),
                    unit=COUNT,
                ),
            ),
            "No Tidegauge alert fires (or the rules are not in this Prometheus).",
            sort_by="Severity",
        ),
        AnnotationsList(
            "Notes",
            "Annotations with the tag `tidegauge`, newest first: Tidegauge writes one per incident and action if it "
            "has a token for this Grafana (docs/grafana.md), and people may add their own.",
            (10, 7),
            (TAG,),
        ),
    )
