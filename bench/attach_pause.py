"""How long ``tidegauge attach`` and ``--detach`` hold a training job up: another thread of its, and its steps.

Prints JSON: the longest gap of a thread that wakes every 2 ms and the longest step, in the second around an attach or
a detach, and otherwise. On a machine with a GPU, or on the rig (a job without the probe is entered by PEP 768):

    python bench/attach_pause.py [--rounds 10] [--python PYTHON] [--level stats] [--without-probe]
    python tests/fakegpu/rig.py run --torch 3.14 -- .venv/bin/python bench/attach_pause.py --without-probe --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tidegauge.probe.activation.launch import activation_environ

ROOT = Path(__file__).resolve().parents[1]
JOB = ROOT / "tests/integration/attach/training.py"
APART_S = 1.5
"""Between two commands: the second around each is looked at."""


def measure(args: argparse.Namespace, scratch: Path) -> dict[str, float]:
    """One job; ``--rounds`` attaches and detaches of it."""
    folder = scratch / "job"
    folder.mkdir()
    environ = {**os.environ, "TIDEGAUGE_RUN_DIR": str(scratch / "run"), "OMP_NUM_THREADS": "1"}
    probe = {} if args.without_probe else activation_environ("dormant", environ, pythonpath=True)
    with subprocess.Popen([args.python, JOB, folder], env={**environ, **probe}) as job:
        try:
            while not (folder / "0.pid").exists():
                assert job.poll() is None, "the job ended"
                time.sleep(0.1)
            time.sleep(APART_S)
            for _ in range(args.rounds):
                for words in (["--level", args.level], ["--detach"]):
                    with (folder / "moments").open("a") as moments:
                        moments.write(f"{time.monotonic()}\n")
                    command = [sys.executable, "-m", "tidegauge", "attach", str(job.pid), *words]
                    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                    time.sleep(APART_S)
        finally:
            (folder / "stop").touch()
    found: dict[str, float] = json.loads((folder / "0.json").read_text())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="attaches and detaches of a job, or jobs")
    parser.add_argument("--python", default="python", help="the job's (default: the first on PATH)")
    parser.add_argument("--level", default="stats", choices=("stats", "auto", "trace"))
    parser.add_argument(
        "--without-probe", action="store_true", help="jobs without the probe, each attached to and detached from once"
    )
    args = parser.parse_args()
    jobs = args.rounds if args.without_probe else 1
    args.rounds //= jobs
    found = []
    for _ in range(jobs):
        with tempfile.TemporaryDirectory() as scratch:
            found.append(measure(args, Path(scratch)))
    longest = {f"{name}_ms": round(1e3 * max(one[f"{name}_s"] for one in found), 1)
               for name in ("gap", "gap_otherwise", "step", "step_otherwise")}  # fmt: skip
    print(json.dumps({"python": args.python, "way": "remote_exec" if args.without_probe else "probe", **longest}))


if __name__ == "__main__":
    main()
