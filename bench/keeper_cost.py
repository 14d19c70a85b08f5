"""What the keeper of ``tidegauge run`` costs beside a job that it leaves alone.

Starts ``tidegauge run -- sleep`` and reads ``/proc`` for ``--seconds``: CPU time, private and resident memory, and how
often it woke. Then times ``tidegauge run -- true`` with a keeper and without one (as under Kubernetes), and a requeue
of a command that ends at once, from the request to its second start. Prints one JSON object; exits with 1 if the
keeper takes more than 30 MiB of its own or a tenth of a percent of a core.

    python bench/keeper_cost.py [--seconds 60] [--turns 10]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from footprint import cpu_s, memory_mib

from tidegauge.core.run_dirs import launch_socket_name
from tidegauge.osproc.processes import identity_of

TARGET_PRIVATE_MIB = 30.0
TARGET_CPU_PERCENT = 0.1
SETTLE_S = 2.0
RUN = [sys.executable, "-m", "tidegauge", "run", "--requeue", "--no-verdict", "--"]


def idle_cost(environ: dict[str, str], seconds: float) -> dict[str, float]:
    keeper = subprocess.Popen([*RUN, "sleep", "100000"], env=environ, stderr=subprocess.DEVNULL)
    try:
        time.sleep(SETTLE_S)
        before_s, wakes = cpu_s(keeper.pid), switches(keeper.pid)
        time.sleep(seconds)
        percent = 100 * (cpu_s(keeper.pid) - before_s) / seconds
        return {
            **memory_mib(keeper.pid),
            "cpu_percent": round(percent, 3),
            "wakes_per_minute": round(60 * (switches(keeper.pid) - wakes) / seconds, 1),
        }
    finally:
        keeper.terminate()
        keeper.wait()


def switches(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def start_s(environ: dict[str, str], turns: int) -> float:
    """The median of starting and ending a command that does nothing."""
    times_s = []
    for _ in range(turns):
        began_s = time.perf_counter()
        subprocess.run([*RUN, "true"], env=environ, stderr=subprocess.DEVNULL, check=True)
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


def requeue_s(environ: dict[str, str], turns: int) -> float:
    """The median time from a request to the first word of the next attempt."""
    script = "echo up; exec sleep 100000"
    keeper = subprocess.Popen([*RUN, "sh", "-c", script], env=environ, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert keeper.stdout is not None
        keeper.stdout.readline()
        process = identity_of(keeper.pid)
        assert process is not None
        path = Path(environ["TIDEGAUGE_RUN_DIR"], str(os.geteuid()), launch_socket_name(process))
        times_s = []
        for turn in range(turns):
            began_s = time.perf_counter()
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(path))
                request = {"command": "requeue", "id": f"bench-{turn}", "restarts": turn}
                connection.sendall(json.dumps(request).encode() + b"\n")
                connection.recv(4096)
            keeper.stdout.readline()
            times_s.append(time.perf_counter() - began_s)
        return statistics.median(times_s)
    finally:
        keeper.terminate()
        keeper.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--turns", type=int, default=10)
    args = parser.parse_args()
    schedulers = ("SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "RAY_JOB_ID", "TIDEGAUGE_KEEPER")
    with tempfile.TemporaryDirectory() as folder:
        kept = {name: value for name, value in os.environ.items() if name not in schedulers}
        kept["TIDEGAUGE_RUN_DIR"] = folder
        idle = idle_cost(kept, args.seconds)
        result = {
            **idle,
            "start_ms": round(1000 * start_s(kept, args.turns), 1),
            "start_without_keeper_ms": round(1000 * start_s({**kept, "KUBERNETES_SERVICE_HOST": "x"}, args.turns), 1),
            "requeue_ms": round(1000 * requeue_s(kept, args.turns), 1),
            "seconds": args.seconds,
            "python": platform.python_version(),
            "machine": f"{os.cpu_count()} cores",
        }
    print(json.dumps(result, indent=2))
    return int(idle["private_mib"] > TARGET_PRIVATE_MIB or idle["cpu_percent"] > TARGET_CPU_PERCENT)


if __name__ == "__main__":
    raise SystemExit(main())
