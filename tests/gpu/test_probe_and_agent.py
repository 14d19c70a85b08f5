"""The probe inside a real CUDA process, seen by a real node agent with real NVML."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from gpu.watching import agent_for, poll_until, rank, watched
from tidegauge.core.verdicts import LeakState, Signal

pytestmark = pytest.mark.gpu

PREAMBLE = """
import json, sys, torch
def tell(**facts):
    print(json.dumps(facts), flush=True)
def wait():
    sys.stdin.readline()
model = torch.nn.Linear(512, 512).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    optimizer.zero_grad(); model(torch.randn(64, 512, device='cuda')).sum().backward(); optimizer.step()
"""


def told(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    facts: dict[str, object] = json.loads(line)
    return facts


def test_agent_says_what_torch_and_nvml_say(gpu_python: str, run_dir: Path) -> None:
    code = PREAMBLE + (
        "for _ in range(10): step()\n"
        "torch.cuda.synchronize(); keep = torch.empty(64 << 20, dtype=torch.uint8, device='cuda'); step()\n"
        "tell(total=torch.cuda.get_device_properties(0).total_memory,\n"
        "     allocated=torch.cuda.memory_allocated(), reserved=torch.cuda.memory_reserved(),\n"
        "     peak=torch.cuda.max_memory_allocated(), uuid=str(torch.cuda.get_device_properties(0).uuid))\n"
        "wait()\n"
    )
    with watched([gpu_python, "-c", code], run_dir=run_dir) as job, agent_for(run_dir) as agent:
        facts = told(job)
        view = poll_until(
            agent,
            lambda v: (
                (r := rank(v)) is not None and r.allocated_bytes == facts["allocated"] and r.nontorch_bytes is not None
            ),
            within_s=20,
        )
        seen = rank(view)
        assert seen is not None
        assert (seen.reserved_bytes, seen.allocated_peak_bytes) == (facts["reserved"], facts["peak"])
        assert seen.step == 11
        assert seen.uuid == f"GPU-{facts['uuid']}"
        assert seen.process.pid == job.pid
        # A CUDA context with cuBLAS loaded takes some hundred MB on every card that we know.
        assert seen.nontorch_bytes is not None
        assert 100 << 20 < seen.nontorch_bytes < 4 << 30
        gpu = next(g for g in view.gpus if g.uuid == seen.uuid)
        assert seen.limit_bytes == facts["total"]
        assert seen.limit_bytes is not None
        assert (gpu.total_bytes or 0) >= seen.limit_bytes, "the driver keeps a reserve"
        assert gpu.used_bytes is not None
        assert gpu.used_bytes >= seen.reserved_bytes


def test_fraction_is_in_force_before_the_first_allocation(gpu_python: str, run_dir: Path) -> None:
    code = PREAMBLE + (
        "total = torch.cuda.get_device_properties(0).total_memory\n"
        "try:\n    torch.empty(int(total * 0.1), dtype=torch.uint8, device='cuda'); tell(error=None)\n"
        "except torch.OutOfMemoryError as error:\n    tell(error=str(error), total=total)\n"
        "wait()\n"
    )
    with watched([gpu_python, "-c", code], run_dir=run_dir, fraction=0.05) as job, agent_for(run_dir) as agent:
        facts = told(job)
        assert "allowed" in str(facts["error"]), "PyTorch's own text names the cap"
        view = poll_until(agent, lambda v: (r := rank(v)) is not None and r.ooms == 1, within_s=20)
        seen = rank(view)
        assert seen is not None
        assert seen.limit_bytes == int(int(str(facts["total"])) * 0.05)


def test_watching_does_not_disturb_a_graph_capture(gpu_python: str, run_dir: Path) -> None:
    code = PREAMBLE + (
        "x = torch.randn(64, 512, device='cuda'); s = torch.cuda.Stream()\n"
        "with torch.cuda.stream(s):\n    [model(x).sum().backward() for _ in range(3)]\n"
        "torch.cuda.synchronize(); optimizer.zero_grad(set_to_none=False); g = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(g):\n"
        "    for _ in range(50): model(x).sum().backward(); optimizer.step()\n"
        "import time; end = time.monotonic() + 2\n"
        "while time.monotonic() < end: g.replay(); torch.cuda.synchronize()\n"
        "tell(ok=True); wait()\n"
    )
    with watched([gpu_python, "-c", code], run_dir=run_dir) as job:
        assert told(job)["ok"] is True


def test_growth_outside_the_allocator_is_named(gpu_python: str, run_dir: Path) -> None:
    code = PREAMBLE + (
        "import ctypes, time, os\n"
        "name = next(l.split()[-1] for l in open('/proc/self/maps') if 'libcudart' in l)\n"
        "cudart = ctypes.CDLL(name); p = ctypes.c_void_p(); torch.cuda.synchronize()\n"
        "n = 0\n"
        "while True:\n"
        "    step(); torch.cuda.synchronize(); n += 1\n"
        "    if n > 60 and n % 5 == 0: assert cudart.cudaMalloc(ctypes.byref(p), 8 << 20) == 0\n"
        "    time.sleep(0.05)\n"
    )
    with watched([gpu_python, "-c", code], run_dir=run_dir), agent_for(run_dir) as agent:
        view = poll_until(
            agent, lambda v: (r := rank(v)) is not None and r.verdict.state is LeakState.LEAK, within_s=90
        )
        seen = rank(view)
        assert seen is not None
        assert seen.verdict.signal is Signal.NONTORCH
        assert seen.verdict.bytes_per_step is not None
        assert seen.verdict.bytes_per_step.likely == pytest.approx(8 / 5 * 2**20, rel=0.35)
