"""How many false notifications per 1,000 GPU-days? An estimate from the healthy series that are called dangerous.

    python bench/false_notifications.py             # a quarter of a minute
    python bench/false_notifications.py --docs      # and puts the table into docs/detector.md
    python bench/false_notifications.py --series "another author, step" 4 468

Notifications = jobs x share of jobs with growth that ends by itself x share of such growth that is called dangerous.
The last is measured (bench/detector_danger.py, on its series), the others are assumptions, named in the table.
``--series`` adds what was judged elsewhere, as by ``detector_danger.py --generator``: a name, how many healthy series
were called dangerous, and of how many. Ranges are Wilson's 95 % intervals of the measured share alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from detector_danger import HELD_OUT, Run, made_up, ours, recordings, share
from detector_parameters import PAGE, between

from leakseries.recorded import WILD_CARDS
from tidegauge.core.incidents.grades import wilson_interval

GPUS_PER_JOB, HOURS_PER_JOB = 8, 12
JOBS = 1000 * 24 / (GPUS_PER_JOB * HOURS_PER_JOB)
"""Per 1,000 GPU-days."""
SHARES_OF_JOBS = (0.02, 0.05, 0.2)
"""With growth that ends by itself: buffers that fill, caches, metrics kept for an epoch, ramps. Nobody has counted."""


class Healthy(NamedTuple):
    """Healthy series whose memory grows or swings, one set of them."""

    name: str
    dangerous: int
    series: int


def judged(name: str, runs: Iterable[Run]) -> Healthy:
    told = [ours(run) for run in runs if not run.leak]
    return Healthy(name, sum(one.danger_s is not None for one in told), len(told))


def measured() -> Iterator[Healthy]:
    for card in WILD_CARDS:
        yield judged(f"loops, {card.replace('_', ', ')}", recordings(card))
    yield judged("ours, made up", made_up(HELD_OUT))


def lines_of(sets: Iterable[Healthy]) -> list[str]:
    shares = [f"{100 * part:.0f} % of jobs have such growth" for part in SHARES_OF_JOBS]
    header = ("healthy series", "called dangerous", *shares)
    rows = [
        (one.name, share(one.dangerous, one.series), *(notifications(one, part) for part in SHARES_OF_JOBS))
        for one in sets
    ]
    return [
        f"False notifications per 1,000 GPU-days, if a job has {GPUS_PER_JOB} GPUs for {HOURS_PER_JOB} hours "
        f"({JOBS:.0f} jobs):",
        "",
        *("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)),
    ]


def notifications(healthy: Healthy, share_of_jobs: float) -> str:
    """``2.1 (1.5 to 2.9)`` per 1,000 GPU-days."""
    jobs = JOBS * share_of_jobs
    low, high = wilson_interval(healthy.dangerous, healthy.series)
    return f"{jobs * healthy.dangerous / healthy.series:.1f} ({jobs * low:.1f} to {jobs * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Estimate false notifications per 1,000 GPU-days.")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/detector.md")
    parser.add_argument(
        "--series", nargs=3, action="append", default=[], metavar=("NAME", "DANGEROUS", "HEALTHY"),
        help="healthy series that were judged elsewhere",
    )  # fmt: skip
    args = parser.parse_args()
    elsewhere = [Healthy(name, int(dangerous), int(series)) for name, dangerous, series in args.series]
    lines = lines_of([*measured(), *elsewhere])
    print("\n".join(lines))
    if args.docs:
        PAGE.write_text(between(PAGE.read_text(), "false_notifications", lines))


if __name__ == "__main__":
    main()
