"""Does the time to out-of-memory hold? Against real errors on GPUs (tests/data/series_wild). Prints Markdown.

    python bench/detector_forecast.py            # a minute
    python bench/detector_forecast.py --docs     # and puts the tables into docs/detector.md

Every second after the alarm counts, with what was shown then. Ranges are 95 % intervals, from drawing the loops anew
10,000 times (seed 1): seconds of one loop are not independent.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from detector_parameters import PAGE, between

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from leakseries.machine import feed  # noqa: E402
from leakseries.recorded import WILD_CARDS, Capped, wild_recordings  # noqa: E402
from tidegauge.core.detector import RankDetector  # noqa: E402
from tidegauge.core.verdicts import Band, LeakState  # noqa: E402

DRAWS = 10_000
LEFT = (10, 30, 100, 300)
"""Steps left that part the second table."""
NAMES = {
    "h100": "H100, seeds 1 and 2 (in view)",
    "h100_later": "H100, seed 7 (not in view)",
    "h100_slow": "H100, seed 6, steps 0.1 s longer (not in view)",
    "h100_another": "H100, loops of another author, seeds 1 and 2 (private pools: in view)",
    "h200_another": "H200, loops of another author, seeds 3 and 4 (private pools: in view)",
    "h100_another_later": "H100, loops of another author, seeds 5 and 6 (private pools: in view)",
    "h200": "H200, seeds 3 and 4 (not in view)",
    "h200_slow": "H200, seed 5, steps 0.2 s longer (not in view)",
}


class Shown(NamedTuple):
    """One band, for as long as it was shown."""

    seconds: float
    left_s: float
    left_steps: int
    band: Band

    @property
    def before(self) -> float:
        return self.seconds * (self.left_s < self.band.low)

    @property
    def inside(self) -> float:
        return self.seconds * (self.band.low <= self.left_s <= self.band.high)


def shown(run: Capped) -> Iterator[Shown]:
    """What was shown from the alarm to the error."""
    if run.oom_s is None or run.oom_step is None:
        return
    detector = RankDetector()
    ends = [*(row.t for row in run.series.rows[1:]), run.oom_s]
    for row, end_s in zip(run.series.rows, ends):
        feed(detector, row, limit_bytes=run.limit_bytes(row))
        verdict = detector.verdict
        if verdict.state is LeakState.LEAK and verdict.seconds_to_oom is not None:
            yield Shown(end_s - row.t, run.oom_s - row.t, run.oom_step - row.step, verdict.seconds_to_oom)


def share(runs: Sequence[Sequence[Shown]], part: Callable[[Shown], float]) -> str:
    """Per cent of the seconds, with its interval."""
    sums = [(sum(map(part, run)), sum(one.seconds for one in run)) for run in runs]

    def of(drawn: Iterable[tuple[float, float]]) -> float:
        parts, wholes = map(sum, zip(*drawn))
        return 100 * parts / wholes if wholes else 0.0

    draw = random.Random(1)
    drawn = sorted(of(draw.choices(sums, k=len(sums))) for _ in range(DRAWS))
    return f"{of(sums):.1f} % ({drawn[DRAWS // 40]:.1f} to {drawn[-DRAWS // 40]:.1f})"


def report() -> list[str]:
    every = {card: list(wild_recordings(card)) for card in WILD_CARDS}
    runs = {card: [list(shown(run)) for run in every[card] if run.oom_s is not None] for card in WILD_CARDS}
    lines = [
        "| loops | ran out of memory | alarm before | seconds shown | before the near end | inside the band | later |",
        "|---|---|---|---|---|---|---|",
    ]
    for card, each in runs.items():
        alarmed = [run for run in each if run]
        seconds = sum(one.seconds for run in alarmed for one in run)
        before = share(alarmed, lambda one: one.before)
        inside = share(alarmed, lambda one: one.inside)
        later = share(alarmed, lambda one: one.seconds - one.before - one.inside)
        lines.append(
            f"| {NAMES[card]} | {len(each)} | {len(alarmed)} | {seconds:.0f} | {before} | {inside} | {later} |"
        )
    lines += [
        "",
        "| steps left | seconds shown | before the near end | inside the band |",
        "|---|---|---|---|",
    ]
    edges = (0, *LEFT, 10**9)
    for low, high in zip(edges, edges[1:]):
        part = [[one for one in run if low < one.left_steps <= high] for run in runs["h200"]]
        part = [run for run in part if run]
        seconds = sum(one.seconds for run in part for one in run)
        name = f"{low + 1} to {high}" if high < 10**9 else f"more than {low}"
        before, inside = share(part, lambda one: one.before), share(part, lambda one: one.inside)
        lines.append(f"| {name} | {seconds:.0f} | {before} | {inside} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure times to out-of-memory against real errors.")
    parser.add_argument("--docs", action="store_true", help="write the tables into docs/detector.md")
    args = parser.parse_args()
    lines = report()
    print("\n".join(lines))
    if args.docs:
        PAGE.write_text(between(PAGE.read_text(), "detector_forecast", lines))


if __name__ == "__main__":
    main()
