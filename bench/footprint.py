"""What the whole service costs on a node: every process of it, while the agent watches ranks at 2 Hz.

Brings a head up (coordinator, agent and Ray on one machine) with ``tidegauge up``, has another process write the rings
of ``--ranks`` ranks, and reads ``/proc`` before and after. Prints one JSON object: per process the share of a core in
percent (utime + stime over wall time) and the private (USS), proportional (PSS) and resident memory in MiB. Exits with
1 if the agent's actor takes more than 1 % of a core or 150 MiB of its own.

    python bench/footprint.py [--ranks 8] [--steps-per-s 10] [--seconds 30] [--notifier]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidegauge.cluster.api import client
from tidegauge.osproc.processes import descendants, stat_of

TARGET_CPU_PERCENT = 1.0
TARGET_PRIVATE_MIB = 150.0
SETTLE_S = 10.0
"""After the start: imports, first polls, Ray's own start-up work."""
WRITER = Path(__file__).parent / "agent_cost.py"
NODE_PROCESSES = ("supervisor", "stand_in", "raylet", "RuntimeEnvAgent", "AgentActor")
"""What runs on every node; the others run on the head alone."""


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all threads: fields 14 and 15 of proc(5) ``stat``."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> dict[str, float]:
    """Private, proportional and resident memory, from ``smaps_rollup``."""
    kib: dict[str, int] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value, _ = line.split()
        kib[name.rstrip(":")] = int(value)
    private = kib["Private_Clean"] + kib["Private_Dirty"]
    return {key: round(value / 1024, 1) for key, value in
            (("private_mib", private), ("pss_mib", kib["Pss"]), ("rss_mib", kib["Rss"]))}  # fmt: skip


def name_of(pid: int) -> str:
    """A short name: Ray's actors by class, its Python processes by script, ours by module."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    if command[0].startswith("ray::"):
        return command[0][len("ray::") :].partition(".")[0]
    for part in command:
        if part.startswith("tidegauge.cluster.ray_service."):
            return part.rpartition(".")[2]
        if part.endswith("dashboard.py"):
            return "dashboard"
    return Path(command[0]).name


def measure(supervisor_pid: int, seconds: float) -> list[dict[str, Any]]:
    """One entry per process of the service that lives through ``seconds``."""
    pids = [supervisor_pid, *(stat.process.pid for stat in descendants(supervisor_pid))]
    before = {pid: (time.monotonic(), cpu_s(pid)) for pid in pids if stat_of(pid) is not None}
    time.sleep(seconds)
    rows = []
    for pid, (at_s, used_s) in before.items():
        if stat_of(pid) is None:
            continue
        share = (cpu_s(pid) - used_s) / (time.monotonic() - at_s)
        rows.append({"name": name_of(pid), "cpu_percent": round(100 * share, 2), **memory_mib(pid)})
    return rows


def total(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {key: round(sum(row[key] for row in rows), 2) for key in ("cpu_percent", "private_mib", "pss_mib")}


def tidegauge(*arguments: str, environ: dict[str, str]) -> Any:
    command = [sys.executable, "-m", "tidegauge.cli.main", *arguments]
    done = subprocess.run(command, env=environ, cwd="/", stdout=subprocess.PIPE, timeout=120, check=True)
    return json.loads(done.stdout) if "--json" in arguments else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--notifier", action="store_true", help="with Slack configured")
    args = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tg-", dir="/tmp"))
    rings = Path(tempfile.mkdtemp(prefix="tg-rings-", dir="/dev/shm"))
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    environ |= {f"TIDEGAUGE_{name}_PORT": "0" for name in ("ENGINE", "API", "METRICS", "NOTIFY")}
    environ |= {"TIDEGAUGE_STATE_DIR": str(root / "s"), "TIDEGAUGE_RUN_DIR": str(rings)}
    if args.notifier:
        # Nobody is there, and nothing is to be told: it asks for news, as on any quiet day.
        environ |= {"TIDEGAUGE_SLACK_TOKEN": "xoxb-0", "TIDEGAUGE_SLACK_CHANNEL": "#gpu-memory"}
        environ |= {"TIDEGAUGE_SLACK_API_URL": "http://127.0.0.1:9/api/"}
    children: list[subprocess.Popen[bytes]] = []
    try:
        service = tidegauge("up", "--json", environ=environ)
        (rings / str(os.getuid())).mkdir(mode=0o700)
        children = [subprocess.Popen(["sleep", "3600"]) for _ in range(args.ranks)]
        pids = [str(child.pid) for child in children]
        steps = ["--steps-per-s", str(args.steps_per_s)]
        writing = [sys.executable, str(WRITER), *steps, "--write", str(rings / str(os.getuid())), *pids]
        children.append(subprocess.Popen(writing))
        time.sleep(SETTLE_S)
        rows = measure(service["supervisor_pid"], args.seconds)
        jobs = client.get(service["api_url"], "/api/v1/jobs")["jobs"]
        seen = sum(rank["alive"] for job in jobs for rank in job["ranks"])
    finally:
        tidegauge("down", environ=environ)
        for child in children:
            child.kill()
            child.wait()
        shutil.rmtree(root, ignore_errors=True)
        shutil.rmtree(rings, ignore_errors=True)
    (agent,) = [row for row in rows if row["name"] == "AgentActor"]
    result = {
        "ranks_seen": seen,
        "steps_per_s": args.steps_per_s,
        "seconds": args.seconds,
        "agent": agent,
        "node_total": total([row for row in rows if row["name"] in NODE_PROCESSES]),
        "head_total": total(rows),
        "processes": rows,
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version(),
                    "ray": version("ray"), "kernel": platform.release()},
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    met = agent["cpu_percent"] <= TARGET_CPU_PERCENT and agent["private_mib"] <= TARGET_PRIVATE_MIB
    return 0 if met and seen == args.ranks else 1


if __name__ == "__main__":
    raise SystemExit(main())
