"""What a rank costs, from 8 of them to 10,000: agent, detector and coordinator, as table and docs/img/fleet_cost.svg.

    PYTHONPATH=bench python -m fleet.curve [--quick] [--json] [--no-plot]

Microseconds of one core for one rank and second. The agent's and the coordinator's hold what they cost without a rank,
shared among those that there are: so they fall until there are some hundred. Constant is what a rank more costs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fleet import agent, detector
from fleet.coordinator_inprocess import cost_per_rank
from fleet.measuring import Bound, bounds_table, clean_up_on_sigterm, say, table

PICTURE = Path(__file__).resolve().parents[2] / "docs/img/fleet_cost.svg"
AGENT_RANKS, DETECTOR_RANKS, COORDINATOR_RANKS = (
    (8, 32, 128, 512, 1000), (8, 100, 1000, 10_000), (8, 80, 1000, 10_000),
)  # fmt: skip
QUICK_RANKS = (8, 64)
MAX_RISE = 1.5
"""The cost of a rank where there are most of them, over the least at any smaller number."""
COLOURS = {"agent": "#0969da", "detector": "#1a7f37", "coordinator": "#bc4c00"}


class Point(NamedTuple):
    """One measurement."""

    part: str
    ranks: int
    us_per_rank_and_s: float


def agent_cost(ranks: int, *, quick: bool) -> float:
    """At 2 Hz and two steps a second; all of its process."""
    figures = agent.measure(ranks, seconds=4 if quick else 30, warm_up_s=1 if quick else 10)
    return figures.us_per_rank_and_s


def detector_cost(ranks: int, *, quick: bool) -> float:
    """At a sample a second, from a job's start on."""
    return detector.measure(ranks, seconds=300 if quick else 1200).mean_us


def coordinator_cost(ranks: int, *, quick: bool) -> float:
    """Of its own work, without Ray's."""
    return cost_per_rank(ranks, 10 if quick else 120).cpu_us_per_rank_s


PARTS: tuple[tuple[str, tuple[int, ...], Callable[..., float]], ...] = (
    ("agent", AGENT_RANKS, agent_cost),
    ("detector", DETECTOR_RANKS, detector_cost),
    ("coordinator", COORDINATOR_RANKS, coordinator_cost),
)


def measure(*, quick: bool = False) -> list[Point]:
    """All points; says each as it is there."""
    points = []
    for part, many, cost in PARTS:
        for ranks in QUICK_RANKS if quick else many:
            points.append(Point(part, ranks, cost(ranks, quick=quick)))
            say(f"  curve: {part}, {ranks:,} ranks: {points[-1].us_per_rank_and_s:.1f} us a rank and second")
    return points


def bounds(points: list[Point]) -> list[Bound]:
    """How much the curve of each part bends upwards."""
    found = []
    for part in dict.fromkeys(point.part for point in points):
        costs = [point.us_per_rank_and_s for point in points if point.part == part]
        found.append(
            Bound(f"cost of a rank, {part}: most ranks over fewer", MAX_RISE, costs[-1] / min(costs[:-1]), "x")
        )
    return found


def points_table(points: list[Point]) -> str:
    many = sorted({point.ranks for point in points})
    cost = {(point.part, point.ranks): f"{point.us_per_rank_and_s:.1f}" for point in points}
    parts = dict.fromkeys(point.part for point in points)
    rows = [(part, *(cost.get((part, ranks), "") for ranks in many)) for part in parts]
    return table(("us a rank and second", *(f"{ranks:,}" for ranks in many)), rows)


def draw(points: list[Point], path: Path) -> None:
    """On a white ground, as the other pictures of the documentation are."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tidegauge"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 3.6))
    for part, colour in COLOURS.items():
        mine = [point for point in points if point.part == part]
        if mine:
            axes.plot(
                [point.ranks for point in mine], [point.us_per_rank_and_s for point in mine], "o-", color=colour,
                label=part,
            )  # fmt: skip
    axes.set(
        xscale="log", yscale="log", xlabel="ranks", ylabel="us of a core a rank and second", title="What a rank costs"
    )
    many = sorted({point.ranks for point in points})
    axes.set_xticks(many, [f"{ranks:,}" for ranks in many], rotation=45, fontsize="small")
    axes.minorticks_off()
    axes.grid(color="#d0d7de", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few ranks for a few seconds, no picture")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    clean_up_on_sigterm()
    points = measure(quick=args.quick)
    found = bounds(points)
    if not (args.quick or args.no_plot):
        draw(points, PICTURE)
    if args.json:
        print(json.dumps({"bounds": [one._asdict() for one in found], "points": [one._asdict() for one in points]}))
    else:
        print(points_table(points), bounds_table(found), sep="\n\n")
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
