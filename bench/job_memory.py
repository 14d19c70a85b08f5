"""The cost of keeping the memory of jobs: ten thousand ranks that end at once, in jobs of one, eight and 1,000 ranks.

    python bench/job_memory.py

Every rank's history is full.

Prints, for each size of job, in seconds of the processor: the longest and the mean tick of the recorder while all
report each second; then how many ticks, of which there is one a second, it takes until all are written after their end,
the longest of these and all of them; and the bytes in the database.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, JobKey, LocalRank, ProcessId, RankIdentity
from tidegauge.core.memory_history import MemoryHistory, MemoryPoint
from tidegauge.core.verdicts import OK
from tidegauge.core.views import NodeSummary, RankSummary

RANKS = 10_000
OF_NODE = 8
LOOKS = 5
"""At the running jobs."""
BEGAN_S = 1_800_000_000.0
GIB = 1 << 30


class Fleet:
    """Nodes of eight ranks that report to one coordinator, and the recorder, on one clock that is set by hand."""

    def __init__(self, store: Store, ranks_of_job: int) -> None:
        self._elapsed_s = 0.0
        history = full_history()
        self._ranks = [_rank(number, ranks_of_job) for number in range(RANKS)]
        self._coordinator = Coordinator(
            wall_s=lambda: BEGAN_S + self._elapsed_s, monotonic_s=lambda: self._elapsed_s, incarnation="c"
        )
        self._recorder = JobRecorder(
            self._coordinator.jobs, store.jobs, history_of=lambda *_: history.copy(),
            now_s=lambda: BEGAN_S + self._elapsed_s, monotonic_s=lambda: self._elapsed_s,
        )  # fmt: skip

    def report(self, step: int, *, alive: bool = True) -> None:
        self._elapsed_s += 1.0
        for first in range(0, RANKS, OF_NODE):
            ranks = tuple(
                replace(
                    rank, step=step, alive=alive, detached=not alive, last_sample_unix_s=BEGAN_S + step,
                    reserved_bytes=10 * GIB + (step * 7919 + rank.process.pid) % GIB,
                )
                for rank in self._ranks[first : first + OF_NODE]
            )  # fmt: skip
            name = f"node{first // OF_NODE}"
            self._coordinator.report(NodeSummary(name, name, 1, "i", None, BEGAN_S + self._elapsed_s, ranks))

    def tick(self) -> float:
        """Seconds of the processor."""
        began_s = time.process_time()
        self._recorder.tick()
        return time.process_time() - began_s

    def wait(self) -> None:
        self._elapsed_s += 1.0

    @property
    def waits(self) -> bool:
        return bool(self._recorder.unwritten)


def full_history() -> MemoryHistory:
    """Of 120 points, as after a day; the same for each rank."""
    figures, history = random.Random(24), MemoryHistory()
    for second in range(0, 86_400, 60):
        held = 9 * GIB + figures.randrange(GIB)
        history.add(MemoryPoint(BEGAN_S - 86_400 + second, second, held, held + GIB, GIB))
    return history


def _rank(number: int, ranks_of_job: int) -> RankSummary:
    job, rank = divmod(number, ranks_of_job)
    identity = RankIdentity(
        job_id=JobId(f"job {job}"), attempt=0, rank=GlobalRank(rank), local_rank=LocalRank(rank % OF_NODE),
        world_size=ranks_of_job, hostname="", job_name=f"job {job}", scheduler="slurm",
    )  # fmt: skip
    return RankSummary(
        identity=identity, process=ProcessId(number + 1, 1), uid=1001, user_name="ada", gpu=number % OF_NODE,
        uuid=DeviceUuid(f"GPU-{number}"), step=0, allocated_bytes=9 * GIB, reserved_bytes=10 * GIB,
        nontorch_bytes=GIB, limit_bytes=80 * GIB, host_rss_bytes=4 * GIB, last_sample_unix_s=BEGAN_S, verdict=OK,
        alive=True,
    )  # fmt: skip


def _jobs(ranks_of_job: int) -> Iterator[JobKey]:
    for job in range(-(-RANKS // ranks_of_job)):
        yield JobKey(f"job {job}", 0, 1001)


def measure(ranks_of_job: int) -> str:
    """One line of the table."""
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(sqlite_url(Path(folder)))
        fleet = Fleet(store, ranks_of_job)
        ticks = []
        for step in range(LOOKS):
            fleet.report(step)
            ticks.append(fleet.tick())
        fleet.report(LOOKS, alive=False)
        ending = [fleet.tick()]
        while fleet.waits:
            fleet.wait()
            ending.append(fleet.tick())
        records = store.jobs.latest(list(_jobs(ranks_of_job)))
        kept = [store.jobs.memory(record) for record in records.values()]
        peaks = sum(len(memory.peaks) for memory in kept if memory is not None)
        curves = sum(len(memory.curves) for memory in kept if memory is not None)
        steps = {peak.steps for memory in kept if memory is not None for peak in memory.peaks}
        assert steps == {LOOKS}, steps
        store.close()
        size_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    return (
        f"| {ranks_of_job:>5,} | {max(ticks):6.2f} s | {sum(ticks) / len(ticks):6.3f} s | {len(ending):>3} s "
        f"| {max(ending):6.2f} s | {sum(ending):6.2f} s | {peaks:>6,} | {curves:>6,} | {size_bytes / 2**20:6.1f} MiB |"
    )


if __name__ == "__main__":
    print(
        "| ranks of a job | longest tick | mean | written after | longest tick then | in all | peaks | curves | file |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for size in (1, 8, 1000):
        print(measure(size), flush=True)
