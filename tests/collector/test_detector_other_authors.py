"""The promise of danger, on series whose authors did not know the detector (seeds that were never in view)."""

from __future__ import annotations

from typing import Any

import pytest

from leakseries.machine import feed, rows_of
from leakseries.other_authors import adversarial, typical, whole_jobs
from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import LeakState, Severity

SEED = 21


def is_called_dangerous(series: Any) -> bool:
    detector = RankDetector()
    for row in rows_of(series):
        verdict = feed(detector, row, limit_bytes=int(series.capacity))
        if verdict.state is LeakState.LEAK and verdict.severity is Severity.CRITICAL:
            return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(
    ("author", "fewest_healthy", "least_found", "most_accused"),
    [(typical, 40, 0.92, 0.03), (adversarial, 40, 0.88, 0.05), (whole_jobs, 20, 0.92, 0.05)],
    ids=["typical", "adversarial", "whole_jobs"],
)
def test_leaks_that_run_out_of_memory_are_dangerous_before_and_healthy_series_are_not(
    author: Any, fewest_healthy: int, least_found: float, most_accused: float
) -> None:
    """The bounds leave room for a seed's luck: docs/detector.md has the figures of more of them."""
    series = author.corpus(SEED, 1, "core")
    fatal = [one for one in series if one.label == 1 and one.meta["oom_in_series"]]
    healthy = [one for one in series if one.label == 0 and not one.ambiguous]
    assert len(fatal) > 20
    assert len(healthy) > fewest_healthy
    assert sum(map(is_called_dangerous, fatal)) >= least_found * len(fatal)
    assert sum(map(is_called_dangerous, healthy)) <= most_accused * len(healthy)
