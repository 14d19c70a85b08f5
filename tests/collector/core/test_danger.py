"""What `RankDetector` calls critical: series by people who had read the promise and not the code."""

from __future__ import annotations

import random
from collections.abc import Callable

from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import LeakState, Severity

GIB = 1 << 30


def critical_at(kept_gib: Callable[[int], float], *, steps: int, step_s: float) -> list[int]:
    """Steps at which it is said; an 80 GiB card, and 6 GiB of activations, more or less, at each peak."""
    detector, draw, said = RankDetector(), random.Random(1), []
    reserved = 0
    for step in range(steps):
        allocated = int(kept_gib(step) * GIB)
        peak = allocated + int(max(0.0, draw.gauss(6, 1)) * GIB)
        reserved = max(reserved, int(1.02 * peak))
        verdict = detector.update(
            step=step, time_s=step * step_s, allocated_bytes=allocated, reserved_bytes=reserved,
            nontorch_bytes=3 * GIB // 2, allocated_peak_bytes=peak, limit_bytes=80 * GIB,
        )  # fmt: skip
        if verdict.state is LeakState.LEAK and verdict.severity is Severity.CRITICAL:
            said.append(step)
    return said


def test_three_rises_that_have_ended_are_not_dangerous() -> None:
    """Said 3,243 steps after the last, and for 11,000 steps, when three rises were enough for the safety net."""
    assert (
        critical_at(lambda step: 20 + 10 * sum(step >= at for at in (1000, 3000, 7000)), steps=12_000, step_s=0.5) == []
    )
