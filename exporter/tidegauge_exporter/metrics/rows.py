"""Kinds of rows of the table of metrics; the rows are in ``table`` and ``loop``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

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
    """One row of the table."""

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
