"""Rows of the table of metrics, and families of prometheus_client made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tidegauge.core.text import one_line
from tidegauge.core.version import __version__

T = TypeVar("T")

JOB_LABELS = ("cluster", "job_id", "attempt")
"""The first labels of every series about a job as a whole."""


class MetricKind(str, Enum):
    """Prometheus' type of a metric."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Starts at 0 when watching starts, so that ``increase()`` sees the first event; only grows."""
    INFO = "info"
    """Is always 1; the labels hold the facts."""


@dataclass(frozen=True)
class Metric:
    """A row of the table of metrics."""

    name: str
    """The scraped name with its suffix ``_total`` or ``_info``."""
    kind: MetricKind
    help: str
    """One sentence for people who meet the name in a query editor."""
    labels: tuple[str, ...]
    source: str
    """The origin of the number, in the words of that place."""
    unit: str | None = None
    """``None`` for counts, states and infos."""
    from_start: tuple[str, ...] = field(default=(), kw_only=True)
    """Values of its only label that have a series at 0 from the start, so that ``increase()`` sees the first event."""

    @property
    def exposed_unit(self) -> str:
        """The unit as OpenMetrics wants it: only where the name ends with it, else empty."""
        return self.unit if self.unit and self.name.endswith(f"_{self.unit}") else ""


@dataclass(frozen=True)
class ReadMetric(Metric, Generic[T]):
    """A row whose number is read from one value."""

    read: Callable[[T], float | None] = lambda _: None
    lingers: bool = False
    """True if a rank keeps this for a while after its end, so that the last value is scraped: counters, peaks and
    verdicts do. The memory that an ended process holds *now* is unknown and so absent."""


@dataclass(frozen=True)
class CountedMetric(Metric, Generic[T]):
    """A row with several numbers, one for each value of its labels beyond those of the place or the job."""

    read_all: Callable[[T], Mapping[tuple[str, ...], float]] = lambda _: {}
    """The numbers by the values of those labels, in their order."""


# Label values that cannot hurt: short, printable, always text. What a job says about itself passes through here.

MAX_LABEL_CHARS = 128
"""Bound of a label value. Prometheus sets none, but holds every value in memory once per series."""


def label_value(value: object) -> str:
    """``value`` as a label: ``None`` is empty (to Prometheus no label), unprintable characters (control characters,
    ends of lines, lone surrogates) become question marks, a long text is cut and ends with an ellipsis."""
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
        return [family for family in self._families.values() if family.samples]


BUILD_INFO = Metric(
    "tidegauge_build_info", MetricKind.INFO, "Version of the Tidegauge that runs there.", ("version",), "package"
)


class _Build(Collector):
    """The version of this process."""

    def describe(self) -> list[Family]:
        return empty_families([BUILD_INFO])

    def collect(self) -> list[Family]:
        samples = Samples([BUILD_INFO])
        samples.add(BUILD_INFO, (__version__,), INFO_VALUE)
        return samples.families()


class ServiceRegistry(CollectorRegistry):
    """A registry with the version, and prometheus_client's ``process_*`` and ``python_*``, of this process."""

    def __init__(self) -> None:
        super().__init__(auto_describe=False)
        self.register(_Build())
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
