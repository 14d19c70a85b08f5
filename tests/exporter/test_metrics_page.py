from __future__ import annotations

from pathlib import Path

from tidegauge_exporter.metrics.docs_page import page
from tidegauge_exporter.metrics.families import MetricKind
from tidegauge_exporter.metrics.notifications import NOTIFIER_TABLE
from tidegauge_exporter.metrics.table import COORDINATOR_TABLE, NODE_TABLE, SERVICE_TABLE

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_page_in_docs_is_up_to_date() -> None:
    assert DOCS.read_text(encoding="utf-8") == page(), (
        "run: python -m tidegauge_exporter.metrics.docs_page > docs/metrics.md"
    )


def test_every_metric_is_on_the_page() -> None:
    text = page()
    assert [
        metric.name
        for metric in (*NODE_TABLE, *COORDINATOR_TABLE, *NOTIFIER_TABLE, *SERVICE_TABLE)
        if f"`{metric.name}`" not in text
    ] == []


def test_names_follow_the_rules_that_people_expect() -> None:
    table = {*NODE_TABLE, *COORDINATOR_TABLE, *NOTIFIER_TABLE, *SERVICE_TABLE}
    assert len({metric.name for metric in table}) == len(table)
    for metric in table:
        assert metric.name.startswith("tidegauge_")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.name.endswith("_info") == (metric.kind is MetricKind.INFO)
        assert not {"job", "instance", "path", "line"} & set(metric.labels)
