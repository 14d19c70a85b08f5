"""The fleet's benchmark, all of it (``make bench-fleet``): one table of bounds and what was measured, and a file.

    PYTHONPATH=bench python -m fleet.run [--quick] [--only agent detector coordinator curve] [--json FILE]

Each part runs in a process of its own, one after the other. Exits with 1 if a bound is missed or a part fails.
``--quick`` is a smoke run of less than a minute with few ranks: it shows that all of it works, and no bound counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from fleet.measuring import Bound, bounds_table, clean_up_on_sigterm, say

BENCH = Path(__file__).resolve().parents[1]
PARTS: dict[str, list[str]] = {"detector": [], "agent": [], "coordinator": ["--hour"], "curve": []}
"""Names of modules, and what each is given for a full run."""
RESULT = Path("fleet.json")


def machine() -> dict[str, Any]:
    """Where and when this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "cpus": os.cpu_count(),
        "cpu": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def run_part(part: str, *, quick: bool) -> dict[str, Any]:
    """What it printed. Raises ``RuntimeError`` if that is nothing."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-m", f"fleet.{part}", "--json", *(["--quick"] if quick else PARTS[part])]
    running = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True)
    try:
        lines = running.communicate()[0].strip().splitlines()
    except BaseException:
        running.terminate()
        running.communicate()
        raise
    if not lines or not lines[-1].startswith("{"):
        raise RuntimeError(f"fleet.{part} ended with {running.returncode} and no figures")
    said: dict[str, Any] = json.loads(lines[-1])
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run; no bound counts")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART")
    parser.add_argument("--json", type=Path, default=RESULT, metavar="FILE", help="where all figures go")
    args = parser.parse_args()
    clean_up_on_sigterm()
    where = machine()
    figures: dict[str, Any] = {"machine": where, "quick": args.quick}
    found: list[Bound] = []
    failed: list[str] = []
    for part in args.only:
        say(f"fleet: {part}")
        began_s = time.monotonic()
        try:
            figures[part] = run_part(part, quick=args.quick)
        except RuntimeError as error:
            say(f"  {error}")
            failed.append(part)
            continue
        found += [Bound(*(one[name] for name in Bound._fields)) for one in figures[part].pop("bounds")]
        say(f"  done in {time.monotonic() - began_s:.0f} s")
    figures["bounds"] = [{**one._asdict(), "met": one.met} for one in found]
    figures["failed"] = failed
    args.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(bounds_table(found))
    if args.quick:
        print("\nA quick run with few ranks: it shows that all of it works, and no bound counts.")
    print(
        f"\n{where['date']}, {where['cpus']} CPUs ({where['cpu']}), Python {where['python']}, load {where['load']:.1f}"
    )
    print("".join(f"fleet.{part} FAILED\n" for part in failed), end="")
    return 1 if failed or not (args.quick or all(one.met for one in found)) else 0


if __name__ == "__main__":
    raise SystemExit(main())
