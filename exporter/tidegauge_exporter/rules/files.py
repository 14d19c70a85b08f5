"""The files that Prometheus reads, made from the tables of rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tidegauge_exporter.links import FLEET, INCIDENTS, JOB, RANK, Links
from tidegauge_exporter.rules.job_alerts import JOB_ALERTS
from tidegauge_exporter.rules.joins import JOIN_GROUP
from tidegauge_exporter.rules.recording import RECORDING
from tidegauge_exporter.rules.service_alerts import SERVICE_ALERTS
from tidegauge_exporter.rules.values import Addresses, AlertRule, Board, RecordingRule, RuleGroup
from tidegauge_exporter.rules.yaml_text import Node, duration, yaml_text

ALERTS: tuple[RuleGroup[AlertRule], ...] = (JOB_ALERTS, SERVICE_ALERTS)

_BOARDS: Final = {
    Board.FLEET: (FLEET, ("cluster",)),
    Board.INCIDENTS: (INCIDENTS, ("cluster",)),
    Board.JOB: (JOB, ("cluster", "job_id", "attempt", "group")),
    Board.RANK: (RANK, ("cluster", "job_id", "attempt", "group", "rank")),
}
"""The dashboard's uid, and the labels of the alert that it wants as variables."""

_HEADING: Final = """Made by python -m tidegauge_exporter.rules from exporter/tidegauge_exporter/rules; edit that.
{what}"""


def rule_files(addresses: Addresses) -> dict[str, str]:
    """File name to text. The links in annotations lead to ``addresses``."""
    return {
        "tidegauge-recording.yml": _file("Figures of jobs, nodes and the cluster.", map(_recording_group, RECORDING)),
        "tidegauge-alerts.yml": _file(
            "Alerts; they need tidegauge-recording.yml. What they mean: docs/alerts.md.",
            (_alert_group(group, addresses) for group in ALERTS),
        ),
        "tidegauge-joins.yml": _file(
            "Optional: joins with dcgm-exporter, kube-state-metrics and Slurm exporters (docs/alerts.md, Joins).",
            [_recording_group(JOIN_GROUP)],
        ),
    }


def dashboard_url(board: Board, addresses: Addresses) -> str:
    """A template of Prometheus: the dashboard of what the alert is about, over the last six hours. Labels are whatever
    a job called itself, so each is escaped."""
    uid, labels = _BOARDS[board]
    variables = "".join(
        f"{{{{ with $labels.{label} }}}}var-{label}={{{{ . | urlquery }}}}&{{{{ end }}}}" for label in labels
    )
    return f"{addresses.grafana_url.rstrip('/')}/d/{uid}?{variables}from=now-6h&to=now"


def _file(what: str, groups: Iterable[Node]) -> str:
    return yaml_text({"groups": list(groups)}, heading=_HEADING.format(what=what))


def _recording_group(group: RuleGroup[RecordingRule]) -> Node:
    return _group(group.name, group.interval_s, [{"record": rule.record, "expr": rule.expr} for rule in group.rules])


def _alert_group(group: RuleGroup[AlertRule], addresses: Addresses) -> Node:
    return _group(group.name, group.interval_s, [_alert(rule, addresses) for rule in group.rules])


def _group(name: str, interval_s: int, rules: list[Node]) -> Node:
    return {"name": name, "interval": duration(interval_s), "rules": rules}


def _alert(rule: AlertRule, addresses: Addresses) -> Node:
    runbook_url = Links(service_url=addresses.service_url).runbook(rule.name)
    assert runbook_url is not None, "Addresses always has a service"
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **({"for": duration(rule.for_s)} if rule.for_s else {}),
        "labels": {"severity": rule.severity.value, **({"scope": rule.scope} if rule.scope else {})},
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": runbook_url,
            "dashboard_url": dashboard_url(rule.board, addresses),
        },
    }
