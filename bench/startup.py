"""What the ``.pth`` line costs every start of an interpreter. Prints JSON.

    python bench/startup.py [--pairs 200]

Makes two bare virtual environments, one with Tidegauge (package and ``.pth`` line), and starts ``python -c pass`` in
both by turns, in the order without-with-with-without. The figure is the median of the pairs' differences of CPU time
(user + system, from ``wait4``), which is less noisy than wall time, given beside it. The target for an unset variable
is under 1 ms. ``settings`` is a process of a job that has settings laid down for this attempt.
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

from tidegauge.core.jobs.settings import JobSettings, encode

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


def lay_settings_down(run_dir: Path) -> dict[str, str]:
    """As the node agent does for a requeued job; the environment of that job."""
    file = run_dir / "jobs" / "4711.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(encode(JobSettings("4711", os.getuid(), alloc_conf={"expandable_segments": "True"})))
    file.parent.chmod(0o755)  # whatever the umask is: others may not write there
    file.chmod(0o644)
    return {"TIDEGAUGE_RUN_DIR": str(run_dir), "SLURM_JOB_ID": "4711"}


def compare(
    without: Path, with_line: Path, level: Optional[str], pairs: int, job: Optional[dict[str, str]] = None
) -> dict[str, float]:
    """Medians of the paired differences at one level, in processes of ``job``."""
    environ = {"PATH": os.defpath, **(job or {})}
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
            "settings": compare(without, with_line, "stats", args.pairs, lay_settings_down(Path(scratch) / "run")),
            "target_ms": TARGET_MS,
        }
    result["met"] = result["unset"]["cpu_ms"] < TARGET_MS and result["unset"]["wall_ms"] < TARGET_MS
    print(json.dumps(result, indent=2))
    return 0 if result["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
