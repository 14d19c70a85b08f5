"""`judge_job` and `RankDetector` over the ranks of a healthy job whose memory wanders."""

from __future__ import annotations

import random

import pytest

from tidegauge.core.detector import RankDetector, judge_job
from tidegauge.core.verdicts import LeakState, Severity

GIB = 1 << 30
SWING_GIB, MEMORY_STEPS, STEPS = 0.3, 150, 1000


def wanders(detector: RankDetector, seed: int) -> set[tuple[LeakState, Severity | None]]:
    """What is said of one rank: 40 GiB that swing by 0.3 GiB and remember where they were for 150 steps."""
    draw, keeps = random.Random(seed), 1 - 1 / MEMORY_STEPS
    spread = SWING_GIB * (1 - keeps * keeps) ** 0.5
    off, said = 0.0, set()
    for step in range(STEPS):
        off = keeps * off + draw.gauss(0, spread)
        allocated = int((40 + off) * GIB)
        verdict = detector.update(
            step=step, time_s=step * 0.5, allocated_bytes=allocated, reserved_bytes=60 * GIB,
            allocated_peak_bytes=allocated + 6 * GIB, limit_bytes=78 * GIB,
        )  # fmt: skip
        said.add((verdict.state, verdict.severity))
    return said


@pytest.mark.parametrize("ranks", [8, 64, pytest.param(4096, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_healthy_ranks_that_wander_are_not_dangerous_however_many_they_are(ranks: int) -> None:
    detectors = [RankDetector() for _ in range(ranks)]
    said = [wanders(detector, seed) for seed, detector in enumerate(detectors)]
    assert not any(severity is Severity.CRITICAL for one in said for _, severity in one)
    growing = sum(any(state is LeakState.LEAK for state, _ in one) for one in said)
    assert growing <= max(3, 0.03 * ranks), "some do rise for as long as they remember, and fall again"
    job = judge_job({rank: detector.verdict for rank, detector in enumerate(detectors)})
    assert job.state is not LeakState.LEAK, "one of them always wanders most"
