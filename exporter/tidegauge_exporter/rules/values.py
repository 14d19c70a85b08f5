"""Alert rules, recording rules and groups of them as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class AlertSeverity(str, Enum):
    """The label ``severity`` of an alert: what Alertmanager routes by."""

    CRITICAL = "critical"
    """A person should look now."""
    WARNING = "warning"
    """A person should look today."""
    INFO = "info"
    """Alertmanager sends no message."""
    NONE = "none"
    """Nothing is wrong: an alert that always fires, as kube-prometheus' ``Watchdog`` does."""


class Board(Enum):
    """A dashboard that alerts link to. It fixes the labels of the alert."""

    FLEET = "fleet"
    """The whole cluster."""
    JOB = "job"
    """``cluster, job_id, attempt``, and ``group`` where the job has several groups of ranks."""
    RANK = "rank"
    """The same and ``rank``."""
    INCIDENTS = "incidents"
    """Incidents and actions of the cluster."""


@dataclass(frozen=True)
class RecordingRule:
    """A series that Prometheus computes ahead of queries."""

    record: str
    """``level:metric:operation``, as Prometheus recommends."""
    expr: str
    help: str
    """One sentence for people who meet the name in a query editor."""
    needs: str | None = None
    """Another exporter that the rule needs, and where its labels come from."""


@dataclass(frozen=True)
class AlertRule:
    """A condition that notifies people."""

    name: str
    expr: str
    severity: AlertSeverity
    board: Board
    summary: str
    """One line, a template of Prometheus: who and where."""
    description: str
    """Two or three sentences with the figures, a template of Prometheus."""
    for_s: int = 0
    """Seconds for which the condition must hold without a break."""
    scope: str | None = None
    """A label that tells two rules of one name apart; ``None``: no such label."""


Rule = TypeVar("Rule", RecordingRule, AlertRule)


@dataclass(frozen=True)
class RuleGroup(Generic[Rule]):
    """Rules of one kind that are evaluated one after the other, at the same moment."""

    name: str
    rules: tuple[Rule, ...]
    interval_s: int = 30
    component: str | None = None
    """The label ``tidegauge_component`` of each alert of the group, which Alertmanager routes by; ``None``: no such
    label."""


@dataclass(frozen=True)
class Addresses:
    """Addresses of the links in annotations. The defaults are those of deploy/observability on one machine."""

    grafana_url: str = "http://localhost:3000"
    runbook_url: str = "http://localhost:9090/consoles/tidegauge-runbooks.html"
    """The page of runbooks, without an anchor. By default Prometheus itself serves it: it is up whenever a rule fires,
    which the coordinator is not."""
    service_url: str | None = "http://localhost:9495"
    """The coordinator's API, which has a page of each job; ``None``: alerts have no link to it."""
