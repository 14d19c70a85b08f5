"""Prints the slowest tests, files and fixtures of the last run of each tier (``make durations``).

``--keep`` writes the seconds of the integration tests' files to ``tests/integration/file_seconds.json``, by which a
fresh checkout starts the longest files first.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).parents[1]
DURATIONS = CHECKOUT / "build" / "durations"
FILE_SECONDS = CHECKOUT / "tests" / "integration" / "file_seconds.json"


def file_of(nodeid: str) -> str:
    """The file of a test, below ``tests/``."""
    return nodeid.split("::", 1)[0].removeprefix("tests/")


def rows(title: str, seconds: dict[str, float], most: int, cpu: dict[str, float] | None = None) -> None:
    """A table of the slowest; ``cpu`` is the processor time of the same names."""
    print(f"  {title}")
    for name, took_s in sorted(seconds.items(), key=lambda row: -row[1])[:most]:
        used = "" if cpu is None else f"{cpu.get(name, 0.0):9.2f} s CPU"
        print(f"  {took_s:9.2f} s{used}  {name}")


def by_file(tests: dict[str, float]) -> dict[str, float]:
    """Seconds of each file."""
    files: dict[str, float] = defaultdict(float)
    for nodeid, took_s in tests.items():
        files[file_of(nodeid)] += took_s
    return files


def show(tier: str, run: dict[str, Any], most: int) -> None:
    """One tier: totals, then the slowest files, tests and fixtures."""
    tests: dict[str, float] = run["tests"]
    cpu: dict[str, float] = run["cpu"]
    fixtures: dict[str, float] = defaultdict(float)
    for name, where, took_s in run["fixtures"]:
        fixtures[f"{name} ({where.removeprefix('tests/') or 'tests'})"] += took_s
    used = f"{sum(tests.values()):.0f} s of tests, {sum(cpu.values()):.0f} s of CPU"
    print(f"{tier}: {len(tests)} tests in {run['wall_s']:.0f} s ({used})")
    rows("files", by_file(tests), most, by_file(cpu))
    rows("tests", tests, most, cpu)
    rows("fixtures, all their uses together", fixtures, most)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--most", type=int, default=10, metavar="N", help="rows of each table (default: 10)")
    parser.add_argument("--keep", action="store_true", help="keep the seconds of the integration tests' files")
    args = parser.parse_args()
    runs = {path.stem: json.loads(path.read_text()) for path in sorted(DURATIONS.glob("*.json"))}
    if not runs:
        print("no run has been recorded yet: make test")
        return 1
    for tier, run in runs.items():
        show(tier, run, args.most)
    if args.keep and "integration" in runs:
        files = by_file(runs["integration"]["tests"])
        kept = {name: round(took_s) for name, took_s in sorted(files.items()) if took_s >= 1}
        FILE_SECONDS.write_text(json.dumps(kept, indent=0) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
