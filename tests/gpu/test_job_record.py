"""What stays of jobs on a real GPU: the figures of their records are the jobs' own counters, however they ended."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu.watching import agent_for, watched
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.cluster.coordinator.coordinator import Coordinator
from tidegauge.cluster.incident_loops.job_recording import JobRecorder
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.core.job_records.record import JobEnd, JobRecord

pytestmark = pytest.mark.gpu

PROGRAM = """
import json, sys, torch
how = sys.argv[1]
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
kept = []
def tell():
    torch.cuda.synchronize()
    print(json.dumps({
        "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
        "total": torch.cuda.get_device_properties(0).total_memory,
    }), flush=True)
for number in range(30):
    optimizer.zero_grad(); model(torch.randn(64, 1024, device="cuda")).sum().backward(); optimizer.step()
big = torch.empty(300 << 20, dtype=torch.uint8, device="cuda"); del big
if how == "oom":
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    finally:
        tell()
tell()
sys.stdin.readline()
"""
STEPS = 30
ENDS = {"healthy": JobEnd.ENDED, "oom": JobEnd.OOM, "cancelled": JobEnd.KILLED}


class Head:
    """A coordinator with its recorder and database, which take the reports of one agent."""

    def __init__(self, agent: NodeAgent, folder: Path) -> None:
        self._agent = agent
        self._folder = folder
        self.store: Store
        self.start()

    def start(self) -> None:
        self.store = open_store(sqlite_url(self._folder))
        self._coordinator = Coordinator(wall_s=time.time, monotonic_s=time.monotonic, incarnation="c")
        self._recorder = JobRecorder(
            self._coordinator.jobs, self.store.jobs, history_of=self._coordinator.history_of, now_s=time.time,
            monotonic_s=time.monotonic,
        )  # fmt: skip

    def kill(self) -> None:
        """Without a last look."""
        self.store.close()

    def look_until(self, done: Callable[[], bool], *, within_s: float = 60.0) -> None:
        end_s = time.monotonic() + within_s
        while True:
            self._agent.poll()
            summary = self._agent.summary(node_id="n", incarnation="a", metrics_address=None)
            self._coordinator.report(summary)
            self._recorder.tick()
            if done():
                return
            assert time.monotonic() < end_s, [one._replace(job_name=None) for one in self.records().values()]
            time.sleep(0.5)

    def highest_bytes(self) -> int:
        return max(rank.highest_reserved_bytes for job in self._coordinator.jobs() for rank in job.ranks)

    def records(self) -> dict[str, JobRecord]:
        running = self.store.jobs.running()
        return {record.job.job_id: record for record in (*running, *self.store.jobs.ended(limit=9))}


@pytest.fixture
def head(run_dir: Path, tmp_path: Path) -> Iterator[Head]:
    with agent_for(run_dir) as agent:
        head = Head(agent, tmp_path)
        yield head
        head.kill()


def told(process: subprocess.Popen[str]) -> dict[str, int]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    facts: dict[str, int] = json.loads(line)
    return facts


@pytest.mark.parametrize("how", ENDS)
def test_a_record_has_the_jobs_own_counters_and_its_end(gpu_python: str, run_dir: Path, head: Head, how: str) -> None:
    with watched([gpu_python, "-c", PROGRAM, how], run_dir=run_dir, job_id=how) as job:
        facts = told(job)
        if how != "oom":
            head.look_until(lambda: how in head.records())
            head.kill()
            head.start()
        if how == "cancelled":  # a signal leaves no time for a last reading
            head.look_until(lambda: head.highest_bytes() == facts["reserved"])
            job.send_signal(signal.SIGTERM)
        elif how == "healthy":
            assert job.stdin is not None
            job.stdin.write("\n")
            job.stdin.flush()
        head.look_until(lambda: how in head.records() and head.records()[how].end is not None)
    record = head.records()[how]
    assert record.end is ENDS[how]
    assert (record.fullest.allocated_bytes, record.fullest.reserved_bytes) == (facts["allocated"], facts["reserved"])
    assert (record.fullest.limit_bytes, record.steps) == (facts["total"], STEPS)
    memory = head.store.jobs.memory(record)
    assert memory is not None
    assert memory.peaks[0].reserved_bytes == facts["reserved"]
    assert max(point.reserved_bytes for point in memory.curves[0].points) <= facts["reserved"]
