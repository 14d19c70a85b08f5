"""Out of memory on a real GPU: what the job's stderr says, what the snapshot says, and whether what-if is right."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu.watching import watched

pytestmark = pytest.mark.gpu

TIDEGAUGE = [sys.executable, "-m", "tidegauge"]
GROWS = """
import torch
torch.cuda.set_per_process_memory_fraction(0.02)
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
while True:
    optimizer.zero_grad()
    model(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    kept.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
"""
LENGTHS = """
import json, random, sys, torch
torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None)
draw = random.Random(3)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(6))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(60):
    rows = draw.randrange(1000, 60000)
    optimizer.zero_grad(set_to_none=True)
    model(torch.randn(rows, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(json.dumps({"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}))
"""


def answer(*arguments: object, codes: tuple[int, ...] = (0,)) -> Any:
    command = [*TIDEGAUGE, *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode in codes, done.stderr
    return json.loads(done.stdout)


def test_the_job_explains_itself_below_its_traceback(gpu_python: str, run_dir: Path) -> None:
    with watched([gpu_python, "-c", GROWS], run_dir=run_dir) as job:
        _, stderr = job.communicate(timeout=120)
    assert job.returncode == 1
    print(stderr)
    told = [line for line in stderr.splitlines() if line.startswith("tidegauge:")]
    assert stderr.index("OutOfMemoryError: CUDA out of memory") < stderr.index(told[0])
    assert "ran out of memory" in told[0]
    assert "an allocation of 64.0 MiB failed" in told[0]
    (snapshot,) = run_dir.glob("*/*.oom.pickle")
    from_snapshot = answer("oom", snapshot)
    message = run_dir / "stderr.txt"
    message.write_text(stderr, encoding="utf-8")
    from_text = answer("oom", message)
    assert from_snapshot["request_bytes"] == from_text["request_bytes"] == 64 << 20
    assert from_snapshot["kind"] == from_text["kind"]


def test_every_address_comes_back_and_what_if_predicts_the_next_run(gpu_python: str, tmp_path: Path) -> None:
    def run(conf: str) -> tuple[Path, dict[str, int]]:
        file = tmp_path / f"{len(list(tmp_path.iterdir()))}.pickle"
        done = subprocess.run(
            ["env", f"PYTORCH_CUDA_ALLOC_CONF={conf}", gpu_python, "-c", LENGTHS, str(file)],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        peaks: dict[str, int] = json.loads(done.stdout)
        return file, peaks

    recorded, today = run("")
    torch_version = subprocess.run(
        [gpu_python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    replayed = answer("replay", recorded, "--torch-version", torch_version)
    assert replayed["address_mismatches"] == 0
    assert (replayed["peak_reserved_bytes"], replayed["peak_allocated_bytes"]) == (
        today["reserved"],
        today["allocated"],
    )
    settings = answer("whatif", recorded, "--torch-version", torch_version)
    for tried in (settings[0]["alloc_conf"], "max_split_size_mb:64"):
        predicted = next(one for one in settings if one["alloc_conf"] == tried)["peak_reserved_bytes"]
        _, seen = run(tried)
        print(json.dumps({"conf": tried, "predicted": predicted, "seen": seen["reserved"], "today": today["reserved"]}))
        assert predicted == pytest.approx(seen["reserved"], rel=0.01)
