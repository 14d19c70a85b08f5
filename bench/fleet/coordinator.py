"""What one coordinator costs with 1,250 agents and 10,000 ranks: processor time, answers, memory.

    PYTHONPATH=bench python -m fleet.coordinator [--ranks 10000] [--seconds 120] [--hour] [--quick] [--json]

First its own work on a simulated clock, by kind (``fleet.coordinator_inprocess``); with ``--hour`` an hour of it, for
its memory. Then the real actor in a local Ray (``fleet.coordinator_ray``), against the bounds. Prints tables, and with
``--json`` one JSON object in the last line. Exits with 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
from typing import Any

from fleet import coordinator_inprocess, coordinator_ray
from fleet.coordinator_inprocess import CoordinatorCost
from fleet.coordinator_ray import RayFigures
from fleet.measuring import Bound, bounds_table, say, table

CORE_PERCENT, ANSWER_MS, GROWTH_SHARE = 30.0, 50.0, 0.05
SETTLED_MINUTES = 20
"""By then each rank's memory history is full: ``memory_history.BUCKETS`` reports, one every 7.8 s in the largest fleet,
take 16 minutes. Caches and the list of events are full before."""
HOUR_S = 3600
QUICK_RANKS = 400


def bounds_of(real: RayFigures, hour: CoordinatorCost | None) -> list[Bound]:
    bounds = [
        Bound(f"coordinator, {real.ranks} ranks: share of a core", CORE_PERCENT, real.core_percent, "%"),
        Bound("... a summary's answer, p99", ANSWER_MS, real.answer_p99_ms, "ms"),
    ]
    if hour is not None:
        bounds.append(
            Bound("... memory's growth in an hour, after twenty minutes", 100 * GROWTH_SHARE, growth_percent(hour), "%")
        )
    return bounds


def growth_percent(hour: CoordinatorCost) -> float:
    """Of private memory from the twentieth minute to the end."""
    settled, last = hour.private_bytes[min(SETTLED_MINUTES, len(hour.private_bytes)) - 1], hour.private_bytes[-1]
    return 100 * (last - settled) / settled


def kinds_table(own: CoordinatorCost) -> str:
    rows = [(what, f"{1e3 * used_s / own.seconds:.1f}") for what, used_s in sorted(own.cpu_s.items())]
    rows.append(
        (f"all, {own.reports_per_s:.0f} reports/s, {own.incidents_open} incidents open", f"{10 * own.core_percent:.1f}")
    )
    return table(("the coordinator's own work", "ms of a core a second"), rows)


def as_json(
    bounds: list[Bound], own: CoordinatorCost, hour: CoordinatorCost | None, real: RayFigures
) -> dict[str, Any]:
    return {
        "bounds": [one._asdict() | {"met": one.met} for one in bounds],
        "own_work": own._asdict(),
        "hour": None if hour is None else hour._asdict(),
        "ray": real._asdict(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hour", action="store_true", help="an hour of simulated time, for the memory (some minutes)")
    parser.add_argument("--quick", action="store_true", help="few ranks and seconds: whether it runs")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    logging.disable()
    ranks, seconds = (QUICK_RANKS, 5.0) if args.quick else (args.ranks, args.seconds)
    warm_up_s = 3.0 if args.quick else 60.0
    simulated_s = (5, 5) if args.quick else (60, 240)
    say(f"the coordinator's own work with {ranks} ranks, {sum(simulated_s)} s of simulated time")
    own = coordinator_inprocess.cost(ranks, simulated_s[0], warm_up_s=simulated_s[1])
    hour = coordinator_inprocess.cost(ranks, HOUR_S, progress=say) if args.hour else None
    real = coordinator_ray.measure(ranks, seconds, warm_up_s=warm_up_s, progress=say)
    bounds = bounds_of(real, hour)
    print(kinds_table(own), bounds_table(bounds), sep="\n\n")
    print(
        f"\n{real.reports_per_s:.0f} reports/s, answers p50 {real.answer_p50_ms:.1f} ms, worst page of top "
        f"{real.top_worst_ms:.0f} ms, worst scrape {real.scrape_worst_ms:.0f} ms, "
        f"{real.incidents_begun} incidents begun"
    )
    if args.json:
        print(json.dumps(as_json(bounds, own, hour, real)))
    return int(not args.quick and not all(one.met for one in bounds))


if __name__ == "__main__":
    raise SystemExit(main())
