"""What reading the state of 10,000 Slurm jobs costs the adapter: one squeue, and seconds of our own process.

    python bench/slurm_describe.py [--jobs 10000] [--repeat 5]

The jobs are the first one of each recording in tests/data/slurm, printed by a stand-in for squeue with another number
each; every one of them is asked about, as if each had an incident. Prints one JSON object. ``wall_s`` is a whole
``describe``, the wait for the stand-in included; ``adapter_s`` is the time of ours in it: what this process computed.
Medians. Exits with 1 if ``adapter_s`` is above the target or more than one command was run.

An answer of 24.11 or later lists every core of every node of a job. From 23.02 on squeue prints only the jobs that it
is asked about, so that a cluster pays for those with incidents; this is what all of them at once would cost.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]

from fake_ranks import FakeRanks  # noqa: E402
from sample_views import job_view, rank_summary  # noqa: E402
from scheduler_hooks.slurm.fake_slurm import RELEASES, FakeSettingsStore, recorded  # noqa: E402, TID251 - the tests' package
from tidegauge.core.ids import JobId  # noqa: E402
from tidegauge.core.jobs.slurm import SlurmPlace  # noqa: E402
from tidegauge.core.views import JobView  # noqa: E402
from tidegauge_scheduler_hooks.slurm.adapter import SlurmScheduler  # noqa: E402
from tidegauge_scheduler_hooks.slurm.commands import SlurmCommands  # noqa: E402

TARGET_S = 2.0


def answer(release: str, jobs: int) -> bytes:
    """What a squeue of this release would print of so many jobs, with its own white space."""
    whole = json.loads(recorded(release).decode(errors="replace"))
    entry = whole["jobs"][0]
    whole["jobs"] = [entry | {"job_id": number + 1} for number in range(jobs)]
    return json.dumps(whole, indent=2).encode()


def views(jobs: int, uid: int) -> list[JobView]:
    rank = rank_summary(0, uid=uid)
    return [
        job_view(job_id=str(number + 1), ranks=(replace(rank, slurm=SlurmPlace(JobId(str(number + 1)), "0")),))
        for number in range(jobs)
    ]


def measured(release: str, jobs: int, repeat: int) -> dict[str, Any]:
    printed = answer(release, jobs)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "answer").write_bytes(printed)
        squeue = folder / "squeue"
        squeue.write_text(f'#!/bin/sh\necho >> "{folder}/calls"\nexec cat "{folder}/answer"\n')
        squeue.chmod(0o755)
        port = SlurmScheduler(SlurmCommands(folder), FakeRanks(), FakeSettingsStore())
        asked = views(jobs, uid=5001)
        walls_s, processors_s = [], []
        for _ in range(repeat):
            wall_s, processor_s = time.perf_counter(), time.process_time()
            described = port.describe(asked)
            walls_s.append(time.perf_counter() - wall_s)
            processors_s.append(time.process_time() - processor_s)
            assert len(described) == jobs
        calls = (folder / "calls").read_text().count("\n")
    return {
        "wall_s": round(statistics.median(walls_s), 3),
        "wall_worst_s": round(max(walls_s), 3),
        "adapter_s": round(statistics.median(processors_s), 3),
        "answer_bytes": len(printed),
        "commands_each": calls / repeat,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    figures = {release: measured(release, args.jobs, args.repeat) for release in RELEASES}
    result = {
        "jobs": args.jobs,
        "releases": figures,
        "most_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "date": date.today().isoformat(),
        "python": platform.python_version(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, load {os.getloadavg()[0]:.1f}",
    }
    print(json.dumps(result, indent=2))
    met = all(one["adapter_s"] <= TARGET_S and one["commands_each"] == 1 for one in figures.values())
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
