"""One agent with up to a thousand rings: its share of a core and its memory, polled at 2 Hz and scraped every 15 s.

    PYTHONPATH=bench python -m fleet.agent [--ranks 1000] [--steps-per-s 2 10] [--seconds 60]

Real: ring files that another process writes at that rate, with a record wherever the probe would write one; a process
for each rank; the agent with everything that it does on a node, its metrics over HTTP as Prometheus asks for them.
Simulated: driver and coordinator (``fleet.agent_process``). More ranks than a node has GPUs share eight of them.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fleet.measuring import Bound, bounds_table, clean_up_on_sigterm, cpu_s, private_bytes, say
from fleet.writer import BENCH, ranks_written

RANKS = 1000
BOUND_PERCENT = 30.0
MAX_MISSED_PERCENT = 10.0
"""On a machine that is busy with other things the ranks do not come to write, and the agent has an easy life."""
SCRAPE_S = 15.0
WARM_UP_S = 20.0
"""After all rings were found: the first samples of a rank cost more than those after them, and memory settles."""
FOUND_S = 180.0


class Figures(NamedTuple):
    """What a run measured."""

    ranks: int
    steps_per_s: float
    seconds: float
    cpu_percent: float
    """Of a core, all threads of the agent's process."""
    points_per_s: float
    """Records that were judged."""
    records_lost: int
    poll_ms: float
    """Processor time of the median poll."""
    scrape_ms: float
    """Worst wall time of a scrape, as the client saw it."""
    scrape_bytes: int
    """As sent, compressed."""
    private_bytes: int
    """Of the agent's process, at the end."""
    empty_bytes: int
    """... and before there was a ring."""
    watched: dict[str, Any]
    """What the agent itself says at the end."""

    @property
    def us_per_rank_and_s(self) -> float:
        return self.cpu_percent * 1e4 / self.ranks

    @property
    def missed_percent(self) -> float:
        return 100 * max(0.0, 1 - self.points_per_s / (self.ranks * self.steps_per_s))

    @property
    def bytes_per_rank(self) -> float:
        return (self.private_bytes - self.empty_bytes) / self.ranks


class AgentProcess:
    """``fleet.agent_process``, from outside."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin, self._stdout = process.stdin, process.stdout
        self._url = f"http://{self._said(60)['metrics']}/metrics"

    @property
    def pid(self) -> int:
        return self._process.pid

    def scrape(self) -> tuple[float, int]:
        """Seconds and bytes of one, as Prometheus asks."""
        request = urllib.request.Request(self._url, headers={
            "Accept-Encoding": "gzip",
            "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3",
        })  # fmt: skip
        began_s = time.perf_counter()
        with urllib.request.urlopen(request, timeout=60) as answer:
            size = len(answer.read())
        return time.perf_counter() - began_s, size

    def ranks(self) -> int:
        """How many it shows."""
        return len(self._values("tidegauge_rank_info"))

    def points(self) -> float:
        """Records that it has judged so far."""
        return sum(self._values("tidegauge_detector_points_total"))

    def _values(self, name: str) -> list[float]:
        with urllib.request.urlopen(f"{self._url}?name[]={name}", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name)]

    def finish(self) -> dict[str, Any]:
        """End it; what it has to say."""
        self._stdin.close()
        return self._said(60)

    def _said(self, timeout_s: float) -> dict[str, Any]:
        readable, _, _ = select.select([self._stdout], [], [], timeout_s)
        line = self._stdout.readline() if readable else b""
        if not line:
            raise RuntimeError("the agent's process says nothing")
        said: dict[str, Any] = json.loads(line)
        return said


@contextmanager
def agent_running(run_dir: Path, state_dir: Path, *, gpus: int) -> Iterator[AgentProcess]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGAUGE_")}
    environ["PYTHONPATH"] = os.pathsep.join([str(BENCH), os.environ.get("PYTHONPATH", "")])
    words = [f"--run-dir={run_dir}", f"--state-dir={state_dir}", f"--gpus={gpus}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "fleet.agent_process", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env=environ,
    )  # fmt: skip
    try:
        yield AgentProcess(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def measure(
    ranks: int = RANKS,
    *,
    steps_per_s: float = 2.0,
    seconds: float = 60.0,
    warm_up_s: float = WARM_UP_S,
    gpus: int = 8,
    churn_s: float | None = None,
) -> Figures:
    """Watch so many ranks for so long. Raises ``RuntimeError`` if the agent does not find them all."""
    shm = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="tidegauge-fleet-", dir=shm if shm.is_dir() else None))
    run_dir = root / "run"
    run_dir.mkdir()
    root.chmod(0o755)
    try:
        with agent_running(run_dir, root / "state", gpus=gpus) as agent:
            agent.scrape()
            time.sleep(2)
            empty_bytes = private_bytes(agent.pid)
            with ranks_written(run_dir, ranks=ranks, steps_per_s=steps_per_s, churn_s=churn_s):
                _wait_for(agent, ranks)
                time.sleep(warm_up_s)
                return _watch(agent, ranks, steps_per_s, seconds, empty_bytes)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _wait_for(agent: AgentProcess, ranks: int) -> None:
    deadline_s = time.monotonic() + FOUND_S
    while (found := agent.ranks()) < ranks:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the agent shows {found} of {ranks} ranks after {FOUND_S:.0f} s: {agent.finish()}")
        time.sleep(0.5)


def _watch(agent: AgentProcess, ranks: int, steps_per_s: float, seconds: float, empty_bytes: int) -> Figures:
    began_s, used_s = time.monotonic(), cpu_s(agent.pid)
    points = agent.points()
    scrapes = [agent.scrape()]
    while (left_s := began_s + seconds - time.monotonic()) > 0:
        say(f"  agent, {ranks:,} ranks at {steps_per_s:g} steps/s: {left_s:.0f} s left")
        time.sleep(min(SCRAPE_S, left_s))
        scrapes.append(agent.scrape())
    wall_s, used_s = time.monotonic() - began_s, cpu_s(agent.pid) - used_s
    points = agent.points() - points
    last_bytes = private_bytes(agent.pid)
    seen = agent.finish()
    return Figures(
        ranks=ranks,
        steps_per_s=steps_per_s,
        seconds=round(wall_s, 1),
        cpu_percent=100 * used_s / wall_s,
        points_per_s=points / wall_s,
        records_lost=seen["records_lost"],
        poll_ms=seen["poll_ms"],
        scrape_ms=1e3 * max(took_s for took_s, _ in scrapes),
        scrape_bytes=scrapes[-1][1],
        private_bytes=last_bytes,
        empty_bytes=empty_bytes,
        watched=seen,
    )


def bounds(figures: Figures) -> list[Bound]:
    what = f"agent, {figures.ranks:,} rings at 2 Hz, {figures.steps_per_s:g} steps/s each"
    seen = figures.watched
    unseen = figures.ranks - seen["ranks"] + figures.records_lost + len(seen["failing"]) + len(seen["dropped"])
    return [
        Bound(what, BOUND_PERCENT, figures.cpu_percent, "% of a core"),
        Bound("... ranks not seen, records lost, sources failing", 0, unseen, ""),
        Bound("... records fewer than that rate makes", MAX_MISSED_PERCENT, figures.missed_percent, "%"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--steps-per-s", type=float, nargs="+", default=[2.0, 10.0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up-s", type=float, default=WARM_UP_S)
    parser.add_argument("--gpus", type=int, default=8, help="simulated; 0: no driver")
    parser.add_argument("--churn-s", type=float, help="jobs live for so long on average")
    parser.add_argument("--quick", action="store_true", help="a smoke run with few ranks")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    clean_up_on_sigterm()
    if args.quick:
        args.ranks, args.seconds, args.warm_up_s = 32, 4.0, 1.0
    runs = []
    for steps_per_s in args.steps_per_s:
        say(f"  agent, {args.ranks:,} ranks at {steps_per_s:g} steps/s")
        runs.append(measure(
            args.ranks, steps_per_s=steps_per_s, seconds=args.seconds, warm_up_s=args.warm_up_s, gpus=args.gpus,
            churn_s=args.churn_s,
        ))  # fmt: skip
    found = [bound for figures in runs for bound in bounds(figures)]
    if args.json:
        print(json.dumps({"bounds": [one._asdict() for one in found], "runs": [one._asdict() for one in runs]}))
    else:
        print(bounds_table(found))
    return 0 if all(one.met for one in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
