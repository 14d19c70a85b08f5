"""From rows of the table to the metric families of prometheus_client: the one place that knows its classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as MetricFamily

from tidegauge_exporter.metric_rows import Kind, Metric

INFO_VALUE = 1.0


class Families:
    """The families of one scrape, made from a table and filled sample by sample."""

    def __init__(self, table: Iterable[Metric]) -> None:
        self._families = {metric.name: _family(metric) for metric in table}

    def add(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """One sample. ``labels`` are the values in the order of ``metric.labels``, already safe (``label_value``)."""
        family = self._families[metric.name]
        if isinstance(family, InfoMetricFamily):
            family.add_metric(labels, {})
        else:
            family.add_metric(labels, value)

    def filled(self) -> list[MetricFamily]:
        """The families that have a sample, in the order of the table."""
        return [family for family in self._families.values() if family.samples]

    def all(self) -> list[MetricFamily]:
        return list(self._families.values())


def _family(metric: Metric) -> GaugeMetricFamily | CounterMetricFamily | InfoMetricFamily:
    if metric.kind is Kind.COUNTER:
        return CounterMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.exposed_unit)
    if metric.kind is Kind.INFO:
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help, labels=metric.labels)
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.exposed_unit)
