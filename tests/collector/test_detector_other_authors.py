"""The promise of danger, on series whose authors did not know the detector (seeds that were never in view)."""

from __future__ import annotations

from typing import Any

import pytest

from leakseries.machine import Row, feed
from leakseries.other_authors import adversarial, typical, whole_jobs
from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import LeakState, Severity

SEED = 21


def is_called_dangerous(series: Any) -> bool:
    detector = RankDetector()
    columns = [getattr(series, name) for name in ("t", "alloc", "resv", "peak", "nvml")]
    if "inactive_split" in series.meta:
        columns.append(series.meta["inactive_split"])
    for step, (t, *sizes) in enumerate(zip(*(column.tolist() for column in columns))):
        verdict = feed(detector, Row(step, t, *map(int, sizes)), limit_bytes=int(series.capacity))
        if verdict.state is LeakState.LEAK and verdict.severity is Severity.CRITICAL:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("author", "least_found", "most_accused"),
    [(typical, 0.92, 0.03), (adversarial, 0.88, 0.05), (whole_jobs, 0.92, 0.05)],
    ids=["typical", "adversarial", "whole_jobs"],
)
def test_leaks_that_run_out_of_memory_are_dangerous_before_and_healthy_series_are_not(
    author: Any, least_found: float, most_accused: float
) -> None:
    """The bounds leave room for a seed's luck: docs/detector.md has the figures of more of them."""
    series = author.corpus(SEED, 1, "core")
    fatal = [one for one in series if one.label == 1 and one.meta["oom_in_series"]]
    healthy = [one for one in series if one.label == 0 and not one.ambiguous]
    assert len(fatal) > 20
    assert len(healthy) > 20
    assert sum(map(is_called_dangerous, fatal)) >= least_found * len(fatal)
    assert sum(map(is_called_dangerous, healthy)) <= most_accused * len(healthy)
