"""What a row of the table of metrics is; the table itself is in ``metrics``, ``self_metrics`` and ``loop_metrics``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

T = TypeVar("T")

JOB_LABELS = ("cluster", "job_id", "attempt")
"""Of every series about a job as a whole, in front of its others."""


class MetricKind(str, Enum):
    """How Prometheus treats the numbers."""

    GAUGE = "gauge"
    COUNTER = "counter"
    """Starts at 0 when watching starts, so that ``increase()`` sees the first event; only grows."""
    INFO = "info"
    """Always 1; the labels are what it says."""


@dataclass(frozen=True)
class Metric:
    """One row of the table."""

    name: str
    """As it is scraped, suffix ``_total`` or ``_info`` included."""
    kind: MetricKind
    help: str
    """One sentence for whoever meets the name in a query editor."""
    labels: tuple[str, ...]
    source: str
    """Where the number comes from, in the words of that place."""
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
    """Whether a rank that ended keeps this for a while: counters, high-water marks and the judgement do, so that the
    last of them are scraped; what an ended process holds *now* is not known and so absent."""


@dataclass(frozen=True)
class CountedMetric(Metric, Generic[T]):
    """A row with several numbers, one for each value of those of its labels that do not say where or of which job."""

    read_all: Callable[[T], Mapping[tuple[str, ...], float]] = lambda _: {}
    """The values of those labels, in their order, to the number."""
