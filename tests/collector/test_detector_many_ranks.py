"""Of many healthy ranks whose memory wanders, none is dangerous: the more are looked at, the more one wanders most."""

from __future__ import annotations

from math import sqrt
from random import Random

import pytest

from leakseries.machine import Row, feed
from tidegauge.core.detector import RankDetector, judge_job
from tidegauge.core.verdicts import LeakState, Severity, Verdict

GIB = 1 << 30
RANKS, STEPS = 4096, 600
SIZES = (8, 64, 512, 4096)


def wandering(rank: int) -> list[Verdict]:
    """Verdicts every 50 steps of a rank that keeps 60 GiB of 80, give or take 0.3 GiB which it forgets in 150 steps."""
    draw, detector = Random(rank), RankDetector()
    keeps = 1 - 1 / 150
    level, verdicts = draw.gauss(0, 0.3), []
    for step in range(STEPS):
        level = keeps * level + draw.gauss(0, 0.3 * sqrt(1 - keeps * keeps))
        kept = int((60 + level) * GIB)
        row = Row(step, step * 1.0, kept, 72 * GIB, kept + 8 * GIB, 73 * GIB)
        verdict = feed(detector, row, limit_bytes=80 * GIB)
        if step % 50 == 49:
            verdicts.append(verdict)
    return verdicts


@pytest.mark.slow
def test_of_thousands_of_ranks_that_wander_no_job_grows_and_no_rank_is_dangerous() -> None:
    ranks = [wandering(rank) for rank in range(RANKS)]
    for size in SIZES:
        jobs = [judge_job({rank: ranks[rank][at] for rank in range(size)}) for at in range(STEPS // 50)]
        assert LeakState.LEAK not in {job.state for job in jobs}
    dangerous = [verdict for rank in ranks for verdict in rank if verdict.severity is Severity.CRITICAL]
    assert not [verdict for verdict in dangerous if verdict.state is LeakState.LEAK]
