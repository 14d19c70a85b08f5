"""A DataLoader whose workers hold GPU memory, on the rig's NVML: the agent counts them on the rank that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.agent_beside_job import agent_beside_job
from integration.service import eventually

pytestmark = [pytest.mark.rig, pytest.mark.timeout(300)]

MIB = 1 << 20
CONTEXT_BYTES = 300 * MIB
WORKERS = 2
ALL_BYTES = WORKERS * (64 * MIB + CONTEXT_BYTES)

JOB = f"""
import sys, time, torch
class OnTheCard(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        if not hasattr(self, "kept"):
            self.kept = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
        return index
if __name__ == "__main__":
    model = torch.nn.Linear(64, 64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(OnTheCard(), num_workers={WORKERS}, multiprocessing_context="spawn")
    for batch in loader:
        model(torch.zeros(8, 64, device="cuda")).sum().backward()
        optimizer.step()
        time.sleep(0.02)
"""


def test_workers_that_hold_gpu_memory_are_counted_on_their_rank(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    environ = rig.environ(devices=1, context_bytes=CONTEXT_BYTES, state=tmp_path / "gpus")
    command = [str(rig.python), str(script)]
    with agent_beside_job(command, environ=environ, folder=tmp_path, job_id="workers") as (job, view_now):
        view = eventually(lambda: _with_children(view_now()), "workers on the card", within_s=200)
        [rank] = view["ranks"]
        assert rank["process"]["pid"] == job.pid
        assert (rank["gpu_children"], rank["data_workers"]) == (WORKERS, WORKERS)
        assert rank["children_bytes"] >= ALL_BYTES
        assert view["gpus"][0]["other_processes_bytes"] == 0


def _with_children(view: Any) -> Any:
    # A worker has its context a moment before it has its tensor.
    whole = [rank["gpu_children"] == WORKERS and rank["children_bytes"] >= ALL_BYTES for rank in view["ranks"]]
    return view if any(whole) else None
