"""What one sample costs the detector: processor time of `RankDetector.update`, mean and worst, in plain Python.

    python bench/detector_speed.py

Three device signals per sample. Processor time of this thread, so that other programs on the machine do not count;
the garbage collector is off, because a real agent's collections are not the detector's.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.corpus import make  # noqa: E402
from leakseries.machine import Row  # noqa: E402
from leakseries.recorded import loop_recordings  # noqa: E402
from tidegauge.core.detector import RankDetector  # noqa: E402

CASES = (
    ("steady", 100_000), ("variable_length", 100_000), ("random_walk_length", 100_000), ("linear", 100_000),
    ("curriculum", 20_000), ("replay_buffer", 20_000), ("linear", 500), ("curriculum", 500), ("fragmentation", 500),
)  # fmt: skip


def cost_us(rows: list[Row]) -> tuple[float, float]:
    """Mean and worst microseconds of one update."""
    detector = RankDetector()
    clock = time.thread_time_ns
    worst = 0
    begin = clock()
    for row in rows:
        before = clock()
        detector.update(
            step=row.step,
            time_s=row.t,
            allocated_bytes=row.allocated,
            reserved_bytes=row.reserved,
            nontorch_bytes=row.nvml_process - row.reserved,
            allocated_peak_bytes=row.peak_allocated,
        )
        worst = max(worst, clock() - before)
    total = clock() - begin
    reading = clock()
    for _ in rows:
        clock()
    return (total - 2 * (clock() - reading)) / len(rows) / 1e3, worst / 1e3


def best_of_three(rows: list[Row]) -> tuple[float, float]:
    gc.collect()
    gc.disable()
    runs = [cost_us(rows) for _ in range(3)]
    gc.enable()
    return min(mean for mean, _ in runs), min(worst for _, worst in runs)


def main() -> None:
    print("| series | samples | mean, us a sample | worst, us |")
    print("|---|---|---|---|")
    for family, steps in CASES:
        mean, worst = best_of_three(make(family, 1, steps).rows)
        print(f"| {family} | {steps:,} | {mean:.1f} | {worst:.0f} |")
    costs = [best_of_three(series.rows) for series in loop_recordings()]
    middle, most = statistics.median(mean for mean, _ in costs), max(mean for mean, _ in costs)
    worst = max(worst for _, worst in costs)
    print(
        f"| {len(costs)} series from an H200, median (largest) | 300 to 500 | {middle:.1f} ({most:.1f}) | {worst:.0f} |"
    )


if __name__ == "__main__":
    main()
