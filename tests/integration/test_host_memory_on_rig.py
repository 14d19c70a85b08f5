"""A DataLoader whose persistent workers cache what they load, as agent and detector see it on the host."""

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
SHARED_MIB, CACHED_MIB = 200, 512

JOB = f"""
import time, torch
class Caching(torch.utils.data.Dataset):
    def __init__(self):
        self.shared, self.cache = torch.ones({SHARED_MIB} << 18), []
    def __len__(self):
        return 1 << 30
    def __getitem__(self, index):
        if index % 2 == 0 and len(self.cache) < {CACHED_MIB}:  # the first of the two workers
            self.cache.append(torch.ones(1 << 18))
        return index
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(Caching(), num_workers=2, persistent_workers=True):
    model(torch.zeros(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    time.sleep(0.02)
"""


def test_what_a_worker_caches_counts_to_its_rank_and_the_worker_is_named(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    environ |= {"TIDEGAUGE_RUN_DIR": str(tmp_path / "run"), "TIDEGAUGE_STATE_DIR": str(tmp_path / "state")}
    job_environ = {**environ, **activation_environ("stats", environ, pythonpath=True), "TIDEGAUGE_JOB_ID": "caching"}
    console = Path(__file__).with_name("agent_console.py")
    with (
        subprocess.Popen([str(rig.python), str(script)], env=job_environ, start_new_session=True) as job,
        subprocess.Popen(
            [sys.executable, str(console)], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as agent,
    ):
        try:
            view = eventually(lambda: _with_a_full_cache(agent), "a worker that cached", within_s=200)
            [rank] = view["ranks"]
            worker, *others = rank["host_processes"]
            assert (worker["name"], worker["process"]["pid"] != job.pid) == ("DataLoader worker", True)
            assert {other["name"] for other in others} >= {"DataLoader worker"}
            assert all(
                other["held_bytes"] < worker["held_bytes"] / 2 for other in others if other["name"] == worker["name"]
            )
            assert rank["host_rss_bytes"] < (CACHED_MIB + 2 * SHARED_MIB + 150) * MIB, "what they share counts once"
            assert view["memory"]["available_bytes"] > 0
        finally:
            agent.kill()
            os.killpg(job.pid, signal.SIGKILL)  # workers may wait for ever where they write to whom nobody reads


def _with_a_full_cache(agent: subprocess.Popen[str]) -> Any:
    assert agent.stdin is not None
    assert agent.stdout is not None
    agent.stdin.write("\n")
    agent.stdin.flush()
    view = json.loads(agent.stdout.readline())
    held = [process["held_bytes"] for rank in view["ranks"] for process in rank["host_processes"]]
    return view if max(held, default=0) >= CACHED_MIB * MIB else None
