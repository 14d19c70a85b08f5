"""What stays of jobs on a real GPU: the figures of their records are the jobs' own counters, however they ended."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.head import Head
from gpu.watching import agent_for, watched
from tidegauge.core.job_records.record import JobEnd

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
