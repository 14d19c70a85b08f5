"""Which series a PromQL expression asks for, and which labels its result has: told from the tables, without data."""

from __future__ import annotations

from collections.abc import Iterator

import promql_parser
from promql_parser import AggModifierType, LabelModifierType, VectorMatchCardinality

from tidegauge_exporter.metrics.families import JOB_LABELS
from tidegauge_exporter.metrics.notifications import NOTIFIER_TABLE
from tidegauge_exporter.metrics.table import (
    COORDINATOR_TABLE,
    GROUP_LABELS,
    NODE_TABLE,
    POD_LABELS,
    RANK_LABELS,
    SERVICE_TABLE,
)
from tidegauge_exporter.rules.recording import RECORDING
from tidegauge_exporter.rules.values import RecordingRule

Labels = frozenset[str]

TARGET: Labels = frozenset({"job", "instance", "component", "cluster", "hostname"})
"""What the scrape of deploy/observability adds to every series that does not have it."""
_FOREIGN: dict[str, Labels] = {
    "up": TARGET,
    "ALERTS": TARGET | {"alertname", "alertstate", "severity", "job_id", "attempt", "group", "rank", "gpu", "UUID"},
    **{
        f"DCGM_FI_DEV_{what}": frozenset({"UUID", "gpu", "device", "modelName", "hostname", "job", "instance"})
        for what in ("FB_USED", "GPU_UTIL", "POWER_USAGE", "XID_ERRORS")
    },
}
"""Series that are not ours."""
_CHOOSES = ("topk", "bottomk")
"""Aggregations that keep the labels of what they choose."""


class UnknownLabelError(Exception):
    """An expression names a series or a label that there is not."""


def _series() -> dict[str, Labels]:
    scraped = {
        metric.name: _scraped(metric.labels)
        for metric in (*NODE_TABLE, *COORDINATOR_TABLE, *NOTIFIER_TABLE, *SERVICE_TABLE)
    }
    known = {**_FOREIGN, **scraped}
    for group in RECORDING:
        for rule in group.rules:
            if isinstance(rule, RecordingRule):
                known[rule.record] = _labels(promql_parser.parse(rule.expr), known)
    return known


def _scraped(labels: tuple[str, ...]) -> Labels:
    """A rank's series as they are on Kubernetes."""
    of_rank, of_job = set(RANK_LABELS) <= set(labels), set(JOB_LABELS) <= set(labels)
    more = frozenset((*(POD_LABELS if of_rank else ()), *(GROUP_LABELS if of_job else ())))
    return frozenset(labels) | TARGET | more


def selectors(expression: str) -> Iterator[promql_parser.VectorSelector]:
    """Every selector, inside of ranges too."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: promql_parser.Expr) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)
        if isinstance(node, promql_parser.MatrixSelector):
            found.append(node.vector_selector)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return iter(found)


def labels_of_result(expression: str) -> Labels:
    """Raises ``UnknownLabelError`` for a series, or a label to match or group by, that does not exist."""
    return _labels(promql_parser.parse(expression), SERIES)


def _labels(node: promql_parser.Expr, known: dict[str, Labels]) -> Labels:
    if isinstance(node, promql_parser.VectorSelector):
        return _of_selector(node, known)
    if isinstance(node, promql_parser.MatrixSelector):
        return _of_selector(node.vector_selector, known)
    if isinstance(node, (promql_parser.ParenExpr, promql_parser.UnaryExpr, promql_parser.SubqueryExpr)):
        return _labels(node.expr, known)
    if isinstance(node, promql_parser.AggregateExpr):
        return _of_aggregate(node, known)
    if isinstance(node, promql_parser.BinaryExpr):
        return _of_binary(node, known)
    if isinstance(node, promql_parser.Call):
        inner = frozenset[str]().union(*(_labels(argument, known) for argument in node.args))
        if node.func.name == "label_replace":
            made, source = (argument.val for argument in (node.args[1], node.args[3]))
            _check({source}, inner, node)
            return inner | {made}
        if node.func.name == "label_join":
            made, _, *sources = (argument.val for argument in node.args[1:])
            _check(set(sources), inner, node)
            return inner | {made}
        return inner
    return frozenset()


def _of_selector(node: promql_parser.VectorSelector, known: dict[str, Labels]) -> Labels:
    if node.name not in known:
        raise UnknownLabelError(f"no series {node.name}")
    labels = known[node.name]
    _check({matcher.name for matcher in node.matchers.matchers}, labels, node)
    return labels


def _of_aggregate(node: promql_parser.AggregateExpr, known: dict[str, Labels]) -> Labels:
    inner = _labels(node.expr, known)
    named = frozenset(node.modifier.labels) if node.modifier else frozenset[str]()
    _check(named, inner, node)
    if str(node.op) in _CHOOSES:
        return inner
    return inner - named if node.modifier and node.modifier.type == AggModifierType.Without else named


def _of_binary(node: promql_parser.BinaryExpr, known: dict[str, Labels]) -> Labels:
    left, right = _labels(node.lhs, known), _labels(node.rhs, known)
    on: Labels | None = None
    if node.modifier and node.modifier.matching and node.modifier.matching.type == LabelModifierType.Include:
        on = frozenset(node.modifier.matching.labels)
        _check(on, left, node)
        _check(on, right, node)
    if str(node.op) in ("and", "unless"):
        return left
    if str(node.op) == "or":
        return left | right
    brought = frozenset(node.modifier.group_labels or ()) if node.modifier else frozenset[str]()
    if node.modifier and node.modifier.card == VectorMatchCardinality.ManyToOne:
        _check(brought, right, node)
        return left | brought
    if node.modifier and node.modifier.card == VectorMatchCardinality.OneToMany:
        _check(brought, left, node)
        return right | brought
    if not left or not right:
        return left | right
    return left if on is None else on


def _check(named: Labels | set[str], there: Labels, node: promql_parser.Expr) -> None:
    if not named <= there:
        raise UnknownLabelError(f"no label {', '.join(sorted(named - there))} in {node.prettify()}")


SERIES = _series()
"""Every series that there can be, and its labels."""
