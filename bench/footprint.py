"""What the whole service costs on a training node, and on a head: every process of it, while the agent watches ranks.

Brings a head and a node up on one machine with ``tidegauge up``, has another process write the rings of ``--ranks``
ranks on the node, and reads ``/proc`` before and after. Prints one JSON object: per process the share of a core in
percent (time on a processor, as its threads' ``schedstat`` counts it, over wall time) and the private (USS),
proportional (PSS) and resident memory in MiB. Exits with 1 if a node takes more than 1 % of a core or its agent's actor
150 MiB of its own.

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
SETTLE_S = 45.0
"""After the start: imports, first polls, Ray's own start-up work, and until the node is quiet (docs/agent.md)."""
WRITER = Path(__file__).parent / "agent_cost.py"
HEAD_ADDRESS, NODE_ADDRESS = "127.0.0.2", "127.0.0.3"


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, all threads that live: to the nanosecond, where proc(5) ``stat`` has ticks."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


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


def measure(supervisor_pids: Sequence[int], seconds: float) -> list[list[dict[str, Any]]]:
    """For each service, one entry per process of it that lives through ``seconds``."""
    services = [[pid, *(stat.process.pid for stat in descendants(pid))] for pid in supervisor_pids]
    before = {
        pid: (time.monotonic(), cpu_s(pid)) for pids in services for pid in pids if stat_of(pid) is not None
    }  # fmt: skip
    time.sleep(seconds)
    return [
        [_row(pid, *before[pid]) for pid in pids if pid in before and stat_of(pid) is not None] for pids in services
    ]


def _row(pid: int, at_s: float, used_s: float) -> dict[str, Any]:
    share = (cpu_s(pid) - used_s) / (time.monotonic() - at_s)
    return {"name": name_of(pid), "cpu_percent": round(100 * share, 3), **memory_mib(pid)}


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
    on_head = environ | {"TIDEGAUGE_STATE_DIR": str(root / "h"), "TIDEGAUGE_RUN_DIR": str(root / "no-rings")}
    on_node = environ | {"TIDEGAUGE_STATE_DIR": str(root / "n"), "TIDEGAUGE_RUN_DIR": str(rings)}
    if args.notifier:
        # Nobody is there, and nothing is to be told: it asks for news, as on any quiet day.
        on_head |= {"TIDEGAUGE_SLACK_TOKEN": "xoxb-0", "TIDEGAUGE_SLACK_CHANNEL": "#gpu-memory"}
        on_head |= {"TIDEGAUGE_SLACK_API_URL": "http://127.0.0.1:9/api/"}
    children: list[subprocess.Popen[bytes]] = []
    try:
        head = tidegauge("up", "--node-address", HEAD_ADDRESS, "--json", environ=on_head)
        join = ("--join", head["head_address"], "--token-file", str(root / "h" / "token"))
        node = tidegauge("up", *join, "--node-address", NODE_ADDRESS, "--json", environ=on_node)
        (rings / str(os.getuid())).mkdir(mode=0o700)
        children = [subprocess.Popen(["sleep", "3600"]) for _ in range(args.ranks)]
        pids = [str(child.pid) for child in children]
        steps = ["--steps-per-s", str(args.steps_per_s)]
        writing = [sys.executable, str(WRITER), *steps, "--write", str(rings / str(os.getuid())), *pids]
        children.append(subprocess.Popen(writing))
        time.sleep(SETTLE_S)
        rows, head_rows = measure([node["supervisor_pid"], head["supervisor_pid"]], args.seconds)
        jobs = client.get(head["api_url"], "/api/v1/jobs")["jobs"]
        seen = sum(rank["alive"] for job in jobs for rank in job["ranks"])
    finally:
        for on in (on_node, on_head):
            tidegauge("down", environ=on)
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
        "node": total(rows),
        "node_processes": rows,
        "head": total(head_rows),
        "head_processes": head_rows,
        "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "python": platform.python_version(),
                    "ray": version("ray"), "kernel": platform.release()},
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    met = total(rows)["cpu_percent"] <= TARGET_CPU_PERCENT and agent["private_mib"] <= TARGET_PRIVATE_MIB
    return 0 if met and seen == args.ranks else 1


if __name__ == "__main__":
    raise SystemExit(main())
