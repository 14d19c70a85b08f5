"""Rows of the Incidents dashboard about what was done: actions, the policy over time, alerts, notes."""

from __future__ import annotations

from typing import Final

from tidegauge_exporter.dashboards.expressions import BY_JOB, FLEET, fleet, job_link
from tidegauge_exporter.dashboards.model.curves import StateTimeline
from tidegauge_exporter.dashboards.model.dashboard import TAG
from tidegauge_exporter.dashboards.model.fields import COUNT, WHEN, Field, ThresholdSteps
from tidegauge_exporter.dashboards.model.panels import AnnotationsList, BarGauge, Panel, Text
from tidegauge_exporter.dashboards.model.queries import Query
from tidegauge_exporter.dashboards.model.tables import Label, Table, Value
from tidegauge_exporter.dashboards.reasons import NOTHING_HAPPENED

_ROWS: Final = 50
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


def policy(what: str) -> str:
    """A figure of the policy, mostly a flag: 1 or 0."""
    return f"max({fleet(f'tidegauge_policy_{what}')})"


def actions() -> tuple[Panel, ...]:
    done = f"round(sum by (action, outcome) (increase({fleet('tidegauge_actions_total')}[$__range]))) > 0"
    ended = fleet("tidegauge_job_last_action_timestamp_seconds")
    return (
        BarGauge(
            "Actions by outcome",
            "In the time range. `would` and `withheld` were not carried out: the mode does not allow it, or a brake "
            "held them. Check `failed`, `unverified` and `no_proof` with `tidegauge policy log`.",
            8,
            10,
            (Query(done, "{{action}}: {{outcome}}", may_be_empty=NOTHING_HAPPENED),),
            Field(COUNT, "No action in this time range.", ThresholdSteps("blue"), decimals=0, least=0),
        ),
        Table(
            "Latest action on each job",
            "The latest action of each kind and outcome.",
            16,
            10,
            (
                Label("Job", label="job_id", links=(job_link(),)),
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
            13,
            8,
            (
                Query(policy("acting"), "may act"),
                Query(policy("paused"), "paused"),
                Query(policy("breaker_open"), "breaker open"),
                Query(f"clamp_max({policy('user_breakers_open')}, 1)", "user breaker"),
            ),
            Field(
                COUNT,
                "The coordinator does not answer.",
                ThresholdSteps("blue"),
                {0: ("no", "semi-dark-blue"), 1: ("yes", "purple")},
            ),
        ),
        Text(
            "What you can do",
            "Commands for the head. This text is static.",
            11,
            8,
            _COMMANDS,
        ),
    )


def alerts() -> tuple[Panel, ...]:
    return (
        Table(
            "Firing alerts",
            "Tidegauge alerts that fire in Prometheus now. Alertmanager may silence or group them; each has a runbook.",
            14,
            9,
            (
                Label("Alert", label="alertname"),
                Label("Severity", 95, label="severity"),
                Label("Job", label="job_id", links=(job_link(),)),
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
            10,
            9,
            (TAG,),
        ),
    )
