"""Typed doors to prometheus_client's writers and parsers, parts of which have no annotations."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as _parse_text
from prometheus_client.registry import Collector

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def text_of(collector: Collector, *, accept: str = "") -> str:
    """What a scraper with this ``Accept`` header reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    encode, _ = choose_encoder(accept)
    return encode(registry).decode("utf-8")


def parse_text(text: str) -> Iterable[Metric]:
    return _parse_text(text)


def parse_openmetrics(text: str) -> Iterable[Metric]:
    """Strict: raises ``ValueError`` for anything that OpenMetrics 1.0 does not allow."""
    return list(_parse_openmetrics(text))  # type: ignore[no-untyped-call]  # prometheus_client leaves it unannotated
