"""What the node agent costs: a process that polls real rings, which another process writes as ranks do.

Prints JSON: share of a core (CPU time of the polling process over wall time; also by thread), private memory,
milliseconds a poll. The agent's share includes NVML only on a machine with a driver; writing the rings is not in it.

    python bench/agent_cost.py [--ranks 8] [--steps-per-s 80] [--seconds 30] [--beside CHECKOUT]

``--beside``: the agent of another checkout polls the same rings at the same time, so that a busy machine is as busy for
both, and ``cpu_ratio`` is what a poll of this one takes of the other's time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fleet.ring_files import Memory, Ring, identity_of

from tidegauge.agent.agent_state import AgentState
from tidegauge.agent.node_agent import NodeAgent, open_node_agent
from tidegauge.agent.runner import Ticker
from tidegauge.probe.process_facts import process_id
from tidegauge.settings import Settings

GIB = 1 << 30


def open_rings(folder: Path, pids: Sequence[int]) -> Iterator[Ring]:
    """One for each process, as under torchrun: all devices are visible to each rank, and one is used."""
    devices = [f"GPU-{device:08x}-0000-0000-0000-000000000000" for device in range(len(pids))]
    for rank, pid in enumerate(pids):
        process = process_id(pid)
        assert process is not None
        who = identity_of("bench", rank, world_size=len(pids), local_rank=rank, devices=devices)
        yield Ring(folder, process, who, device=rank)


def noisy_memory() -> Memory:
    noise = random.randrange(GIB)
    return Memory(20 * GIB + noise, 30 * GIB, 28 * GIB)


def write_rings(folder: Path, pids: Sequence[int], steps_per_s: float) -> None:
    """Write until killed: steps of all ranks, spread over the period as far as the machine allows."""
    rings = list(open_rings(folder, pids))
    beat = Ticker(1 / steps_per_s, now_s=time.monotonic())
    while True:
        if beat.is_due(time.monotonic()):
            for ring in rings:
                ring.step(noisy_memory())
        time.sleep(max(0.0, beat.due_s - time.monotonic()))


def private_bytes() -> int:
    """USS: what ends with this process, from ``/proc/self/smaps_rollup``."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))


def cpu_s_by_thread() -> dict[str, float]:
    """CPU seconds so far, from ``/proc/self/task/TID/schedstat``."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        name = names.get(int(task.name), "other")
        found[name] = found.get(name, 0.0) + int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measure(run_dir: Path, *, poll_period_s: float, seconds: float, ranks: int) -> dict[str, Any]:
    """Poll for ``seconds`` after all ranks were seen, and keep the state as in the service."""
    with tempfile.TemporaryDirectory() as kept:
        state = AgentState(Path(kept), boot_id="bench")
        agent = open_node_agent(Settings(run_dir=run_dir, poll_period_s=poll_period_s), state=state)
        try:
            return _measured(agent, poll_period_s=poll_period_s, seconds=seconds, ranks=ranks)
        finally:
            agent.close()


def _measured(agent: NodeAgent, *, poll_period_s: float, seconds: float, ranks: int) -> dict[str, Any]:
    agent.start_searching()
    search_now = getattr(agent, "search_now", lambda: None)  # not before 2026-12-01: the search has its own time
    deadline_s = time.monotonic() + 20
    while len(agent.view().ranks) < ranks and time.monotonic() < deadline_s:
        agent.poll()
        search_now()
        time.sleep(0.1)
    took_s: list[float] = []
    first_steps = sum(rank.steps for rank in agent.view().ranks)
    wall_s, cpu_s, threads_s = time.monotonic(), time.process_time(), cpu_s_by_thread()
    beat = Ticker(poll_period_s, now_s=wall_s)
    while time.monotonic() < wall_s + seconds:
        if beat.is_due(time.monotonic()):
            before_s = time.perf_counter()
            agent.poll()
            took_s.append(time.perf_counter() - before_s)
            search_now()
        time.sleep(max(0.0, beat.due_s - time.monotonic()))
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    spent_s = {name: now_s - threads_s.get(name, 0.0) for name, now_s in cpu_s_by_thread().items()}
    view = agent.view()
    steps = sum(rank.steps for rank in view.ranks) - first_steps
    return {
        "ranks": len(view.ranks),
        "records_per_s": round(steps / wall_s, 1),
        "records_lost": view.records_lost,
        "gpus": len(view.gpus),
        "cpu_percent_of_a_core": round(100 * cpu_s / wall_s, 3),
        "cpu_ms_a_poll": round(1e3 * cpu_s / len(took_s), 3),
        "cpu_percent_by_thread": {name: round(100 * took / wall_s, 3) for name, took in spent_s.items()},
        "poll_ms_median": round(1e3 * statistics.median(took_s), 3),
        "poll_ms_worst": round(1e3 * max(took_s), 3),
        "private_mib": round(private_bytes() / (1 << 20), 1),
    }


def measure_both(run_dir: Path, other: Path, options: Sequence[str]) -> dict[str, Any]:
    """This checkout's agent and another's, each in a process of its own."""
    checkouts = {"here": Path(__file__).resolve().parents[1], "beside": other}
    packages = [path for path in [os.environ.get("PYTHONPATH")] if path]
    agents = {
        name: subprocess.Popen(
            [sys.executable, __file__, *options, "--watch", str(run_dir)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(checkout / "collector"), *packages])},
            stdout=subprocess.PIPE,
        )
        for name, checkout in checkouts.items()
    }
    found = {name: json.loads(agent.communicate()[0]) for name, agent in agents.items()}
    ratio = found["here"]["cpu_ms_a_poll"] / found["beside"]["cpu_ms_a_poll"]
    return {"cpu_ratio": round(ratio, 3), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps-per-s", type=float, default=80)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--poll-period-s", type=float, default=0.5)
    parser.add_argument("--beside", type=Path)
    parser.add_argument("--write", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    measured = {"poll_period_s": args.poll_period_s, "seconds": args.seconds, "ranks": args.ranks}
    if args.watch:
        print(json.dumps(measure(args.watch, **measured)))
        return
    if args.write:
        write_rings(Path(args.write[0]), [int(pid) for pid in args.write[1:]], args.steps_per_s)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        mine = Path(folder, str(os.getuid()))
        mine.mkdir(mode=0o700)
        ranks = [subprocess.Popen(["sleep", "3600"]) for _ in range(args.ranks)]
        pids = [str(rank.pid) for rank in ranks]
        steps = ["--steps-per-s", str(args.steps_per_s)]
        writer = subprocess.Popen([sys.executable, __file__, *steps, "--write", str(mine), *pids])
        try:
            if args.beside:
                options = [
                    word for name, value in measured.items() for word in (f"--{name.replace('_', '-')}", str(value))
                ]
                figures = measure_both(Path(folder), args.beside, options)
            else:
                figures = measure(Path(folder), **measured)
        finally:
            for process in [writer, *ranks]:
                process.kill()
                process.wait()
    print(json.dumps({"steps_per_s": args.steps_per_s, "poll_period_s": args.poll_period_s, **figures}))


if __name__ == "__main__":
    main()
