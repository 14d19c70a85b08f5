"""Families of prometheus_client for one scrape, by the rows of the table of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tidegauge.core.text import one_line
from tidegauge_exporter.metrics.rows import Metric, MetricKind

# Label values that cannot hurt: short, printable, always text. What a job says about itself passes through here.

MAX_LABEL_CHARS = 128
"""Bound of a label value. Prometheus sets none, but holds every value in memory once per series."""


def label_value(value: object) -> str:
    """``value`` as a label: ``None`` is empty (which Prometheus reads as "no such label"), unprintable characters
    (control characters, line ends, lone surrogates) become question marks, a long text is cut and ends with an
    ellipsis."""
    return "" if value is None else _safe(str(value))


def _safe(text: str) -> str:
    if len(text) > MAX_LABEL_CHARS:
        text = text[: MAX_LABEL_CHARS - 1] + "\u2026"
    return one_line(text, None)


INFO_VALUE = 1.0

Labels = Mapping[str, str]


class Exposition(NamedTuple):
    """The answer to a scrape."""

    body: bytes
    content_type: str


def labels_of(names: Sequence[str], values: Sequence[object]) -> dict[str, str]:
    """Label values by their names, each made safe (``label_value``)."""
    return dict(zip(names, map(label_value, values), strict=True))


def empty_families(table: Iterable[Metric]) -> list[Family]:
    """The families of a table without samples."""
    return [_family(metric) for metric in table]


class Samples:
    """The samples of one scrape, by the rows of a table and in its order."""

    def __init__(self, table: Iterable[Metric]) -> None:
        self._families = {metric.name: _family(metric) for metric in table}

    def add(self, metric: Metric, values: Sequence[object], number: float) -> None:
        """Add one sample. ``values`` are those of ``metric.labels`` in their order, of any type."""
        self.add_to(labels_of(metric.labels, values), metric, number)

    def add_to(self, labels: dict[str, str], metric: Metric, number: float) -> None:
        """Add one sample with ``labels``, which are not copied."""
        self._families[metric.name].samples.append(Sample(metric.name, labels, float(number)))

    def families(self) -> list[Family]:
        """The families that have samples."""
        return [family for family in self._families.values() if family.samples]


class ServiceRegistry(CollectorRegistry):
    """A registry with prometheus_client's ``process_*`` and ``python_*`` of this process."""

    def __init__(self) -> None:
        super().__init__(auto_describe=False)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self)


class _Collected(Collector):
    """Families that are already collected."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(families: Iterable[Family], accept: str | None) -> Exposition:
    """The text of the families with samples, in the format that the header ``Accept`` asks for."""
    encode, content_type = choose_encoder(accept or "")
    return Exposition(encode(_Collected([family for family in families if family.samples])), content_type)


def _family(metric: Metric) -> Family:
    """The family of a row. OpenMetrics names counters and infos without their suffixes."""
    suffix = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info"}.get(metric.kind, "")
    return Family(metric.name.removesuffix(suffix), metric.help, metric.kind.value, metric.exposed_unit)
