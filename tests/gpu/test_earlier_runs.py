"""A job that filled and stopped several times does so again, and nobody is alarmed; one that goes on is a danger."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu.head import Head
from gpu.watching import agent_for, watched
from tidegauge.core.evidence.growth_bound import EARLIER_RUNS
from tidegauge.core.job_records.earlier_runs import MIN_EARLIER_RUNS
from tidegauge.core.verdicts import LeakState, Severity
from tidegauge.core.views import JobView

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

PROGRAM = """
import sys, time, torch
fills, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
piece = int(0.84 * torch.cuda.get_device_properties(0).total_memory / 800)
kept = []
for number in range(steps):
    optimizer.zero_grad(); model(torch.randn(64, 1024, device="cuda")).sum().backward(); optimizer.step()
    if number < fills:
        kept.append(torch.zeros(piece, dtype=torch.uint8, device="cuda"))
    time.sleep(0.015)
print("done", flush=True)
sys.stdin.readline()
"""
FILLS, STEPS = 800, 1300
"""84 % of the card, and then level for five eighths of the steps that it took."""


@pytest.fixture
def head(run_dir: Path, tmp_path: Path) -> Iterator[Head]:
    with agent_for(run_dir) as agent:
        head = Head(agent, tmp_path)
        yield head
        head.kill()


def job_of(head: Head, job_id: str) -> JobView | None:
    return next((view for view in head.coordinator.jobs() if view.job_id == job_id), None)


def severities(head: Head, job: subprocess.Popen[str], job_id: str) -> list[JobView]:
    """Views of the job at each look, until it has ended."""
    seen: list[JobView] = []

    def ended() -> bool:
        view = job_of(head, job_id)
        seen.extend([] if view is None else [view])
        if view is not None and view.ranks[0].step >= STEPS and job.stdin is not None and job.poll() is None:
            with contextlib.suppress(BrokenPipeError):
                job.stdin.write("\n")
                job.stdin.flush()
        return job_id in head.records() and head.records()[job_id].end is not None

    head.look_until(ended, within_s=120.0)
    return seen


def is_dangerous(view: JobView) -> bool:
    return view.state is LeakState.LEAK and view.severity is Severity.CRITICAL


def test_growth_that_ended_in_earlier_runs_is_no_danger_and_growth_beyond_them_is(
    gpu_python: str, run_dir: Path, head: Head, tmp_path: Path
) -> None:
    script = tmp_path / "fill.py"
    script.write_text(PROGRAM)

    def train(job_id: str, fills: int) -> list[JobView]:
        with watched([gpu_python, str(script), str(fills), str(STEPS)], run_dir=run_dir, job_id=job_id) as job:
            return severities(head, job, job_id)

    first = train("run-0", FILLS)
    assert any(map(is_dangerous, first)), "without earlier runs this growth is a danger"
    for number in range(1, MIN_EARLIER_RUNS):
        train(f"run-{number}", FILLS)
    again = train("again", FILLS)
    assert not any(map(is_dangerous, again))
    bounds = [bound for view in again for bound in view.bounds.values()]
    assert {bound.kind for bound in bounds} == {EARLIER_RUNS}
    assert any(bound.holds for bound in bounds)
    held_bytes = head.records()["again"].fullest.allocated_bytes
    assert all(abs(bound.end_bytes.likely - held_bytes) <= 0.02 * held_bytes for bound in bounds if bound.holds)
    beyond = train("beyond", int(1.13 * FILLS))
    assert any(map(is_dangerous, beyond))
    record = head.records()["beyond"]
    assert record.change is not None
    assert record.change.startswith("its peak (")
    print(record.change, [view.ranks[0].step for view in beyond if is_dangerous(view)][:1])
