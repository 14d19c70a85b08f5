"""An hour of churn on one real service; exits with 1 if any part of Tidegauge grows.

    PYTHONPATH=tests:bench python -m soak [--minutes 60] [--json FILE]

Needs the fake-GPU rig (``make rig``). Every part's private memory goes through Tidegauge's own detector; descriptors,
sockets, threads and files must be flat in the second half; planted leaks must be called leaks by the same judgement.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fakegpu.rig import Rig
from integration.service import Service, eventually
from soak.judgement import MIN_GROWTH_BYTES, WARM_UP_SHARE
from soak.parts import Parts, ProcessRow, ThingRow
from soak.past import INCIDENTS
from soak.planted import FAST_BYTES_PER_S, SLOW_BYTES_PER_S, planted
from soak.rig_jobs import RigJobs, scratch_folder
from soak.ring_jobs import STEPS_PER_S, RingJobs
from soak.site import soaked_service
from soak.table import as_json, print_tables
from soak.visitors import Visitors
from tidegauge.agent.runner import Ticker

PLANTED = "planted"
"""How the names of planted leaks begin."""
UNWATCHED = "rank without probe"
"""Not judged: no part of Tidegauge is in it. What the ranks with a probe are compared with."""
SAY_EVERY_S = 30.0
LOOKS = 1000
"""Readings of each process in a run, at most four a second: the detector wants some hundreds for a verdict."""
MIN_RUN_MINUTES = 1.5


def run(minutes: float, rig: Rig) -> tuple[list[ProcessRow], list[ThingRow], dict[str, Any]]:
    """The whole soak."""
    run_s = minutes * 60
    with ExitStack() as stack:
        scratch = scratch_folder()
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        service, slack = stack.enter_context(soaked_service(rig, scratch))
        parts = Parts(service.files, service.run_dir, service.record.supervisor.pid, run_s)
        eventually(
            lambda: service.actors("NotifierActor") and service.agents() and service.coordinators(), "the actors"
        )
        ring_jobs = RingJobs(service.run_dir)
        stack.callback(ring_jobs.close)
        rig_jobs = RigJobs(rig, service, scratch)
        stack.callback(rig_jobs.close)
        leaks = {f"{PLANTED} {rate / 1000:g} kB/s": planted(rate) for rate in (FAST_BYTES_PER_S, SLOW_BYTES_PER_S)}
        for process in leaks.values():
            stack.callback(process.wait)
            stack.callback(process.kill)
        parts.watch_service()
        beside = {**rig_jobs.steady, UNWATCHED: rig_jobs.unwatched, **leaks}
        parts.watch({name: process.pid for name, process in beside.items()})
        api_url, metrics_url = _addresses(service)
        visitors = Visitors(service, api_url, metrics_url)
        visitors.start()
        stack.callback(visitors.stop)
        _churn(run_s, parts, ring_jobs, rig_jobs, visitors)
        work = {
            "jobs": dict(ring_jobs.begun),
            "leaking training jobs": rig_jobs.leaks,
            "jobs under tidegauge run": rig_jobs.runs,
            "snapshots and evidence asked": rig_jobs.asks,
            "commands that failed": dict(rig_jobs.failed),
            "answers": dict(sorted(visitors.answers.items())),
            "rows": parts.rows,
            "messages on Slack": len(slack.messages),
        }
        return parts.process_rows(), list(parts.thing_rows()), work


def _addresses(service: Service) -> tuple[str, str]:
    """Of the API and of the agent's ``/metrics``."""

    def metrics() -> str | None:
        (node,) = service.get("/api/v1/nodes")["nodes"]
        return str(node["metrics_address"] or "") or None

    address = eventually(metrics, "the agent's address")
    return service._api_url(), f"http://{address}/metrics"


def _churn(run_s: float, parts: Parts, ring_jobs: RingJobs, rig_jobs: RigJobs, visitors: Visitors) -> None:
    start_s = time.monotonic()
    writes, looks, disk, says = (
        Ticker(period_s, now_s=start_s)
        for period_s in (1 / STEPS_PER_S, max(run_s / LOOKS, 0.25), max(run_s / 100, 2.0), SAY_EVERY_S)
    )
    while (now_s := time.monotonic()) < start_s + run_s:
        at_s = now_s - start_s
        if writes.is_due(now_s):
            ring_jobs.turn()
        if looks.is_due(now_s):
            rig_jobs.turn()
            parts.look(at_s)
        if disk.is_due(now_s):
            parts.look_at_disk(at_s)
        if says.is_due(now_s):
            _say(at_s, run_s, parts, ring_jobs, visitors)
        time.sleep(max(0.0, min(writes.due_s, looks.due_s) - time.monotonic()))


def _say(at_s: float, run_s: float, parts: Parts, ring_jobs: RingJobs, visitors: Visitors) -> None:
    held = {
        name: f"{watch.memory.readings[-1][1] / (1 << 20):.1f}"
        for name, watch in parts.processes.items()
        if watch.memory.readings and name in ("AgentActor", "CoordinatorActor", "NotifierActor", "rank (auto)")
    }
    print(
        f"{at_s / 60:5.1f} of {run_s / 60:g} min: {ring_jobs.begun.total()} begun, {ring_jobs.running} ranks now, "
        f"{parts.rows.get('incidents', 0)} incidents, {sum(visitors.answers.values())} answers; private MiB {held}",
        file=sys.stderr, flush=True,
    )  # fmt: skip


def failures(processes: list[ProcessRow], things: list[ThingRow], work: Mapping[str, Any], minutes: float) -> list[str]:
    """What makes the exit status 1, in words."""
    found = []
    for row in processes:
        if row.name.startswith(PLANTED):
            sure = row.growth_bytes_per_hour is None or _is_visible(row.name, minutes)
            if sure and not row.verdicts["memory"].grows:
                found.append(f"the {row.name} leak was not called one: this run proves nothing")
        elif row.name != UNWATCHED:
            found += [f"{row.name}: {what} {one.word}" for what, one in row.verdicts.items() if one.grows]
    found += [f"{row.name}: {row.verdict.word}" for row in things if row.verdict.grows]
    if work["rows"].get("incidents", 0) <= INCIDENTS:
        found.append("no incident was opened: this run proves nothing")
    if not work["messages on Slack"]:
        found.append("nobody was told anything: this run proves nothing of the notifier")
    return found


def _is_visible(name: str, minutes: float) -> bool:
    """Whether a planted leak grows by twice what counts at all between the warm-up and the end."""
    rate = next(rate for rate in (FAST_BYTES_PER_S, SLOW_BYTES_PER_S) if f"{rate / 1000:g} kB/s" in name)
    return rate * minutes * 60 * (1 - WARM_UP_SHARE) > 2 * MIN_GROWTH_BYTES


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the run (60; 1.5 at least)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    args = parser.parse_args()
    if args.minutes < MIN_RUN_MINUTES:
        parser.error(f"nothing can be said after less than {MIN_RUN_MINUTES} minutes")
    # Whoever ends this with SIGTERM is not left with a service.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended before its time"))
    rig = Rig()
    if (reason := rig.available()) is not None:
        parser.error(f"the fake-GPU rig is needed (make rig): {reason}")
    processes, things, work = run(args.minutes, rig)
    print_tables(processes, things)
    print("\nwork: " + json.dumps(work, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(as_json(processes, things, work, run_s=args.minutes * 60), indent=1))
    found = failures(processes, things, work, args.minutes)
    print("\n" + ("\n".join(found) if found else "nothing grows"))
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
