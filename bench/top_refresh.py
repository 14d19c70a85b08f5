"""What one look of ``tidegauge top`` costs: the coordinator makes the answer, the terminal reads and draws it.

    python bench/top_refresh.py [--jobs 100] [--ranks 1024]

Both in this process, by way of JSON, without the network; each figure is the median of nine looks. The first screen is
measured from the start of the command in a pseudo-terminal to its first job, over HTTP, with compiled bytecode.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import pty
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from textual.pilot import Pilot  # noqa: E402

from tidegauge.cli.top.app import TopApp  # noqa: E402
from tidegauge.cli.top.model import Selection, key_of  # noqa: E402
from tidegauge.cli.top.screens import LiveScreen  # noqa: E402
from tidegauge.cluster.api.http_api import Request  # noqa: E402
from top_world import JOBS, World, serving_world  # noqa: E402

LOOKS = 9


def world_of(jobs: int, ranks: int) -> World:
    """Jobs as in the made-up cluster, but wide."""
    made = (JOBS[number % len(JOBS)] for number in range(jobs))
    return World(
        tuple(
            replace(job, job_id=f"{40_000 + number}", ranks=ranks, first_gpu=number * ranks)
            for number, job in enumerate(made)
        )
    ).live(reports=3)


def median_s(work: Callable[[], object]) -> float:
    return statistics.median(_seconds(work) for _ in range(LOOKS))


def _seconds(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


async def drawing(world: World) -> dict[str, float]:
    """Seconds in which the screen does not answer, by screen."""
    service = world.service()
    app = TopApp(service, service.overview(), user="ada", choice=Selection(), job=None)
    drawn: dict[str, float] = {}
    async with app.run_test(size=(120, 36)) as pilot:
        for name, keys in (("cluster", ()), ("job", ("enter",)), ("rank", ("enter",))):
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            drawn[name] = await _redraw(app, pilot)
    return drawn


async def _redraw(app: TopApp, pilot: Pilot[None]) -> float:
    times: list[float] = []
    for _ in range(LOOKS):
        screen = app.screen
        assert isinstance(screen, LiveScreen), "all of them are"
        await pilot.pause()
        began_s = time.perf_counter()
        screen.draw()
        await pilot.pause()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def first_screen_s(url: str, seen: bytes) -> float:
    """Seconds from the start of the command until ``seen`` is drawn; then it is ended by its own key."""
    end, inside = pty.openpty()
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "tidegauge", "top", "--api", url]
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with subprocess.Popen(command, stdin=inside, stdout=inside, stderr=inside, env=environment) as process:
        os.close(inside)
        raw = os.read(end, 65536)
        while seen not in raw:
            raw += os.read(end, 65536)
        taken_s = time.perf_counter() - began_s
        os.write(end, b"q")
        try:
            while os.read(end, 65536):
                pass
        except OSError:  # EIO: it has ended
            pass
        process.wait()
    os.close(end)
    return taken_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=1024)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    world = world_of(args.jobs, args.ranks)
    service = world.service()
    job = service.overview().jobs[0]
    query = {"job_id": job.job_id, "attempt": str(job.attempt), "uid": str(job.uid)}

    def anew(path: str, **asked: str) -> Callable[[], object]:
        """The page without what was kept from a moment ago."""
        return lambda: world.routes()[path](Request(asked, None))

    print(f"{args.jobs} jobs of {args.ranks} ranks, median of {LOOKS}")
    print(f"coordinator, overview made anew   {median_s(anew('/api/v1/overview')) * 1e3:8.1f} ms")
    print(f"coordinator, a job made anew      {median_s(anew('/api/v1/job', **query)) * 1e3:8.1f} ms")
    print(f"terminal, overview asked and read {median_s(service.overview) * 1e3:8.1f} ms")
    print(f"terminal, a job asked and read    {median_s(lambda: service.job(key_of(job))) * 1e3:8.1f} ms")
    for name, seconds in asyncio.run(drawing(world)).items():
        print(f"terminal, {name:<8} drawn           {seconds * 1e3:8.1f} ms")
    with serving_world(world) as url:
        first_s = statistics.median(first_screen_s(url, job.job_id.encode()) for _ in range(LOOKS))
    print(f"terminal, from start to first job {first_s * 1e3:8.1f} ms")


if __name__ == "__main__":
    main()
