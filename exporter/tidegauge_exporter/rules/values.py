"""What a rule, a runbook entry and a file of rules are. The tables are beside this."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class AlertSeverity(str, Enum):
    """The label ``severity`` of an alert: what Alertmanager routes by."""

    CRITICAL = "critical"
    """Somebody should look now."""
    WARNING = "warning"
    """Somebody should look today."""
    INFO = "info"
    """To be seen by who looks anyway; not sent."""


class Board(Enum):
    """The dashboard that an alert links to, and so which labels the alert has."""

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
    """A series that Prometheus computes ahead of the questions."""

    record: str
    """``level:metric:operation``, as Prometheus recommends."""
    expr: str
    help: str
    """One sentence for whoever meets the name in a query editor."""


@dataclass(frozen=True)
class AlertRule:
    """A condition that somebody is told of."""

    name: str
    expr: str
    severity: AlertSeverity
    board: Board
    summary: str
    """One line, a template of Prometheus: who and where."""
    description: str
    """Two or three sentences with the figures, a template of Prometheus."""
    for_s: int = 0
    """How long the condition must hold without a break."""
    scope: str | None = None
    """A label that tells two rules of one name apart; ``None``: no such label."""


Rule = TypeVar("Rule", RecordingRule, AlertRule)


@dataclass(frozen=True)
class RuleGroup(Generic[Rule]):
    """Rules of one kind that are evaluated one after the other, at the same moment."""

    name: str
    rules: tuple[Rule, ...]
    interval_s: int = 30


@dataclass(frozen=True)
class Addresses:
    """Where the links in annotations lead. The defaults are those of deploy/observability on one machine."""

    grafana_url: str = "http://localhost:3000"
    service_url: str = "http://localhost:9495"
    """The coordinator's API, as people reach it."""


@dataclass(frozen=True)
class JoinRule:
    """A recording rule that needs another exporter, and a sentence on where its labels come from."""

    rule: RecordingRule
    needs: str
