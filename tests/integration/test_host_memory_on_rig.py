"""A DataLoader whose persistent workers cache what they load, as agent and detector see it on the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.agent_beside_job import agent_beside_job
from integration.service import eventually

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


def test_host_memory_of_a_caching_worker_counts_to_its_rank(rig: Rig, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(JOB)
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    command = [str(rig.python), str(script)]
    with agent_beside_job(command, environ=environ, folder=tmp_path, job_id="caching") as (job, view_now):
        view = eventually(lambda: _with_a_full_cache(view_now()), "a worker that cached", within_s=200)
        [rank] = view["ranks"]
        worker, *others = rank["host_processes"]
        assert (worker["name"], worker["process"]["pid"] != job.pid) == ("DataLoader worker", True)
        assert {other["name"] for other in others} >= {"DataLoader worker"}
        assert all(
            other["held_bytes"] < worker["held_bytes"] / 2 for other in others if other["name"] == worker["name"]
        )
        assert rank["host_rss_bytes"] < (CACHED_MIB + 2 * SHARED_MIB + 150) * MIB, "what they share counts once"
        assert view["memory"]["available_bytes"] > 0


def _with_a_full_cache(view: Any) -> Any:
    held = [process["held_bytes"] for rank in view["ranks"] for process in rank["host_processes"]]
    return view if max(held, default=0) >= CACHED_MIB * MIB else None
