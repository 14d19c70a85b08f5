"""What the ``.pth`` line costs every start of an interpreter. Prints JSON.

    python bench/startup.py [--pairs 200]

Makes two bare virtual environments, one with Tidegauge (package and ``.pth`` line), and starts ``python -c pass`` in
both by turns, in the order without-with-with-without. The figure is the median of the pairs' differences of CPU time
(user + system, from ``wait4``), which is less noisy than wall time, given beside it. The target for an unset variable
is under 1 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Optional

PACKAGE = Path(__file__).resolve().parents[1] / "collector" / "tidegauge"
PTH = PACKAGE / "probe" / "activation" / "tidegauge-probe.pth"
TARGET_MS = 1.0


def make_environment(folder: Path, *, with_tidegauge: bool) -> Path:
    """A virtual environment without pip; its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    if with_tidegauge:
        (site_packages,) = folder.glob("lib/python*/site-packages")
        (site_packages / "tidegauge").symlink_to(PACKAGE)
        (site_packages / PTH.name).write_text(PTH.read_text())
    return folder / "bin" / "python"


def start_ms(python: Path, environ: dict[str, str]) -> tuple[float, float]:
    """CPU and wall milliseconds of one start."""
    began = time.perf_counter()
    pid = os.posix_spawn(python, [str(python), "-c", "pass"], environ)
    _, status, usage = os.wait4(pid, 0)
    wall_ms = (time.perf_counter() - began) * 1e3
    if status != 0:
        raise SystemExit(f"{python} ended with status {status}")
    return (usage.ru_utime + usage.ru_stime) * 1e3, wall_ms


def compare(without: Path, with_line: Path, level: Optional[str], pairs: int) -> dict[str, float]:
    """Medians of the paired differences at one level."""
    environ = {"PATH": os.defpath}
    if level is not None:
        environ["TIDEGAUGE_PROFILE"] = level
    cpu, wall = [], []
    for pair in range(pairs + 5):
        order = [without, with_line] if pair % 2 == 0 else [with_line, without]
        times = {python: start_ms(python, environ) for python in order}
        if pair >= 5:  # the first ones write byte code
            cpu.append(times[with_line][0] - times[without][0])
            wall.append(times[with_line][1] - times[without][1])
    return {"cpu_ms": round(statistics.median(cpu), 3), "wall_ms": round(statistics.median(wall), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of starts for each level (default 200)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        without = make_environment(Path(scratch) / "without", with_tidegauge=False)
        with_line = make_environment(Path(scratch) / "with", with_tidegauge=True)
        result: dict[str, Any] = {
            "python": platform.python_version(),
            "pairs": args.pairs,
            "unset": compare(without, with_line, None, args.pairs),
            "stats": compare(without, with_line, "stats", args.pairs),
            "target_ms": TARGET_MS,
        }
    result["met"] = result["unset"]["cpu_ms"] < TARGET_MS and result["unset"]["wall_ms"] < TARGET_MS
    print(json.dumps(result, indent=2))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
