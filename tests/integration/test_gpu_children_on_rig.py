"""A DataLoader whose workers hold GPU memory, on the rig's NVML: the agent counts them on the rank that has them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.service import eventually
from tidegauge.probe.activation.launch import activation_environ

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
    environ |= {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run"), "TIDEGAUGE_STATE_DIR": str(tmp_path / "state")}
    job_environ = {**environ, **activation_environ("stats", environ, pythonpath=True), "TIDEGAUGE_JOB_ID": "workers"}
    console = Path(__file__).with_name("agent_console.py")
    with (
        subprocess.Popen([str(rig.python), str(script)], env=job_environ, start_new_session=True) as job,
        subprocess.Popen(
            [sys.executable, str(console)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as agent,
    ):
        try:
            view = eventually(lambda: _with_children(agent), "workers on the card", within_s=200)
            [rank] = view["ranks"]
            assert rank["process"]["pid"] == job.pid
            assert (rank["gpu_children"], rank["data_workers"]) == (WORKERS, WORKERS)
            assert rank["children_bytes"] >= ALL_BYTES
            assert view["gpus"][0]["other_processes_bytes"] == 0
        finally:
            agent.kill()
            os.killpg(job.pid, signal.SIGKILL)  # workers may wait for ever where they write to whom nobody reads


def _with_children(agent: subprocess.Popen[str]) -> Any:
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write("\n")
    agent.stdin.flush()
    view = json.loads(agent.stdout.readline())
    # A worker has its context a moment before it has its tensor.
    whole = [rank["gpu_children"] == WORKERS and rank["children_bytes"] >= ALL_BYTES for rank in view["ranks"]]
    return view if any(whole) else None
