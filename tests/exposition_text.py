"""A node's page as text, and typed doors to prometheus_client's parsers, parts of which have no annotations."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text

from tidegauge_exporter.metrics.collector import NodeCollector
from tidegauge_exporter.metrics.families import exposition

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def text_of(collector: NodeCollector, *, accept: str = "") -> str:
    """What a scraper with this ``Accept`` header reads."""
    return exposition(collector.collect(), accept).body.decode("utf-8")


def parse_text(text: str) -> Iterable[Metric]:
    return _parse_text(text)


def parse_openmetrics(text: str) -> Iterable[Metric]:
    """Strict: raises ``ValueError`` for anything that OpenMetrics 1.0 does not allow."""
    return list(_parse_openmetrics(text))  # type: ignore[no-untyped-call]  # prometheus_client leaves it unannotated
