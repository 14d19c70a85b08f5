"""CUDA graphs that are recorded for each shape, on a real GPU: evidence and the words at the end name private pools.

Nobody is told to try ``expandable_segments``, under which the same job runs out of memory likewise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evidence_runs import run_script
from gpu.watching import watched
from tidegauge.agent.nvml import open_nvml
from tidegauge.core.evidence.brief import Confidence, EvidenceCause

pytestmark = pytest.mark.gpu

GRAPHS = """
import sys, time, torch
rows, pace_s = int(sys.argv[1]), float(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
inputs = torch.zeros(rows + 64, 1024, device="cuda")
graphs = []

def record(batch):
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        model(batch)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            model(batch)
    graphs.append(graph)
    graph.replay()

for step in range(20_000):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    record(inputs[: rows + step % 64])
    torch.cuda.synchronize()
    time.sleep(pace_s)
"""
CAP_BYTES = 1229 << 20
"""Some 550 graphs of 2 MiB: growth is established before the end, and expandable segments, of which each pool reserves
addresses for more than the device's memory, meet the cap before the driver's address space (828 pools on an H200)."""


def total_bytes() -> int:
    """The memory of the GPU that is listed first, as NVML says it."""
    gpus = open_nvml()
    assert gpus is not None
    total = gpus.read()[0].total_bytes
    gpus.close()
    assert total is not None
    return total


def test_evidence_tells_private_pools_from_fragmentation(gpu_python: str, run_dir: Path) -> None:
    # 16 MiB an activation: each graph takes 20 MiB and more, so that a window sees some hundred MiB.
    run = run_script([gpu_python, "-c", GRAPHS, "4096", "0.05"], environ=os.environ, run_dir=run_dir)
    print(run.cause, run.comparison.early_pools, run.comparison.late_pools)
    assert run.comparison.late_pools.pools > run.comparison.early_pools.pools
    assert (run.cause.cause, run.cause.confidence) == (EvidenceCause.CUDA_GRAPHS, Confidence.NAMED)
    assert (run.cause.advice or "").endswith("`expandable_segments:True` does not help")
    early, late = run.evidence.early_facts.cuda_graphs, run.evidence.facts.cuda_graphs
    assert early is not None
    assert late is not None
    assert early < late


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_an_out_of_memory_by_graphs_is_told_so(gpu_python: str, run_dir: Path, conf: str) -> None:
    # Less than 1 MiB an activation: the allocator takes segments of 2 MiB, not of 20, and growth has time to show.
    command = ["env", f"PYTORCH_CUDA_ALLOC_CONF={conf}", gpu_python, "-c", GRAPHS, "190", "0.03"]
    with watched(command, run_dir=run_dir, fraction=CAP_BYTES / total_bytes()) as job:
        _, stderr = job.communicate(timeout=200)
    print(stderr)
    assert job.returncode == 1
    told = [line for line in stderr.splitlines() if line.startswith("tidegauge:")]
    assert "in private pools (CUDA graphs, MemPool), out of reach" in told[0]
    assert "reserved memory grew by " in told[0]
    assert told[0].endswith("expandable_segments does not help.")
