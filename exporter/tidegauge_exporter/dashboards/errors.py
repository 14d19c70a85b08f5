"""The panel that counts errors, of a job or of one rank."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge_exporter.dashboards.model.fields import COUNT, PLAIN, Field, ThresholdSteps
from tidegauge_exporter.dashboards.model.panels import Stat
from tidegauge_exporter.dashboards.model.queries import Query


def errors_in_the_range(chosen: Callable[[str], str]) -> Stat:
    """``chosen`` selects the series of a metric that the dashboard is about."""

    def counted(metric: str) -> str:
        return f"round(sum(increase({chosen(metric)}[$__range])))"

    return Stat(
        "Errors in the range",
        "Out-of-memory errors, caught ones included, and allocations that succeeded only after the cache was emptied "
        "(retries): each retry stalls the rank, and an OOM is near.",
        4,
        4,
        (
            Query(counted("tidegauge_rank_ooms_total"), "out of memory"),
            Query(counted("tidegauge_rank_alloc_retries_total"), "retries"),
        ),
        Field(COUNT, "not watched", ThresholdSteps(PLAIN, ((1, "orange"),)), decimals=0),
        instant=True,
        named=True,
    )
