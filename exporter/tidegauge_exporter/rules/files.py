"""The rule files that Prometheus reads, made from the tables of rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from tidegauge_exporter.links import FLEET, INCIDENTS, JOB, RANK
from tidegauge_exporter.rules.alerts import ALERTS
from tidegauge_exporter.rules.recording import JOIN_GROUP, RECORDING
from tidegauge_exporter.rules.values import Addresses, AlertRule, Board, RecordingRule, RuleGroup

_BOARDS: Final = {
    Board.FLEET: (FLEET, ("cluster",)),
    Board.INCIDENTS: (INCIDENTS, ("cluster",)),
    Board.JOB: (JOB, ("cluster", "job_id", "attempt", "group")),
    Board.RANK: (RANK, ("cluster", "job_id", "attempt", "group", "rank")),
}
"""The dashboard's uid, and the labels of the alert that become its variables."""

COMPONENT: Final = "tidegauge_component"
"""The label of alerts about the service itself. Alertmanager sends these past the service."""

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
    """A template of Prometheus: the address of the dashboard over the last six hours. Jobs choose the values of labels,
    so each is escaped."""
    uid, labels = _BOARDS[board]
    variables = "".join(
        f"{{{{ with $labels.{label} }}}}var-{label}={{{{ . | urlquery }}}}&{{{{ end }}}}" for label in labels
    )
    return f"{addresses.grafana_url.rstrip('/')}/d/{uid}?{variables}from=now-6h&to=now"


def job_urls(board: Board, addresses: Addresses) -> dict[str, str]:
    """The annotation with the coordinator's page of the job, as a template of Prometheus; none for other alerts, and
    where that address is not known. Of a job with several groups of ranks the page names them all."""
    if addresses.service_url is None or board not in (Board.JOB, Board.RANK):
        return {}
    query = "&".join(f"{label}={{{{ $labels.{label} | urlquery }}}}" for label in ("job_id", "attempt"))
    return {"job_url": f"{addresses.service_url.rstrip('/')}/job?{query}"}


def _file(what: str, groups: Iterable[Node]) -> str:
    return yaml_text({"groups": list(groups)}, heading=_HEADING.format(what=what))


def _recording_group(group: RuleGroup[RecordingRule]) -> Node:
    return _group(group.name, group.interval_s, [{"record": rule.record, "expr": rule.expr} for rule in group.rules])


def _alert_group(group: RuleGroup[AlertRule], addresses: Addresses) -> Node:
    return _group(group.name, group.interval_s, [_alert(rule, group.component, addresses) for rule in group.rules])


def _group(name: str, interval_s: int, rules: list[Node]) -> Node:
    return {"name": name, "interval": duration(interval_s), "rules": rules}


def _alert(rule: AlertRule, component: str | None, addresses: Addresses) -> Node:
    return {
        "alert": rule.name,
        "expr": rule.expr,
        **({"for": duration(rule.for_s)} if rule.for_s else {}),
        "labels": {
            "severity": rule.severity.value,
            **({COMPONENT: component} if component else {}),
            **({"scope": rule.scope} if rule.scope else {}),
        },
        "annotations": {
            "summary": rule.summary,
            "description": rule.description,
            "runbook_url": f"{addresses.runbook_url}#{rule.name.lower()}",
            "dashboard_url": dashboard_url(rule.board, addresses),
            **job_urls(rule.board, addresses),
        },
    }


# YAML that people can read, without a library: texts are literal blocks, in which nothing has to be escaped.

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9_:./-]*(?<!:)|[0-9]+[smhd]")
"""Words that mean themselves in YAML, given that none of our values is a word such as ``yes`` or ``null``."""
_NO_WORDS: Final = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})

Node = str | Mapping[str, "Node"] | Sequence["Node"]


def yaml_text(node: Mapping[str, Node], *, heading: str) -> str:
    """The document of ``node`` after ``heading`` as a comment. Lists hold mappings; values are printable texts of one
    or more lines, without white space around them."""
    comment = "".join(f"# {line}".rstrip() + "\n" for line in heading.splitlines())
    return comment + "\n".join(_mapping(node, "")) + "\n"


def duration(seconds: int) -> str:
    """A time as Prometheus writes it: ``90s``, ``5m``, ``1h``."""
    for unit, size in (("h", 3600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _mapping(node: Mapping[str, Node], indent: str) -> Iterator[str]:
    for key, value in node.items():
        if isinstance(value, str):
            yield from _scalar(key, value, indent)
            continue
        yield f"{indent}{key}:"
        if isinstance(value, Mapping):
            yield from _mapping(value, indent + "  ")
        else:
            yield from (line for item in value for line in _item(item, indent + "  "))


def _item(item: Node, indent: str) -> Iterator[str]:
    assert isinstance(item, Mapping), "lists of rule files hold mappings"
    first, *others = _mapping(item, indent + "  ")
    yield f"{indent}- {first.strip()}"
    yield from others


def _scalar(key: str, text: str, indent: str) -> list[str]:
    if _PLAIN.fullmatch(text) and text.lower() not in _NO_WORDS:
        return [f"{indent}{key}: {text}"]
    lines = text.split("\n")
    assert text == text.strip(), f"not fit for a block: {text!r}"
    assert all(line.isprintable() for line in lines), f"not fit for a block: {text!r}"
    return [f"{indent}{key}: |-", *(f"{indent}  {line}" for line in lines)]
