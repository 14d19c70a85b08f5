"""The estimate beside the real thing, on a machine with a GPU: the number, and that the GPU is left alone meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[2] / "examples" / "estimate" / "train.py"
REAL = """
import json, sys, torch
sys.path.insert(0, sys.argv[1])
import train
model, optimizer, step = train.build(batch_size=int(sys.argv[2]))
for _ in range(4):
    step()
print(json.dumps({"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}))
"""


@pytest.mark.parametrize("batch_size", [4, 16])
def test_estimate_is_what_the_job_needs(gpu_python: str, batch_size: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [gpu_python, "-c", REAL, str(EXAMPLE.parent), str(batch_size)],
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    real: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    function = tmp_path / "job.py"
    function.write_text(
        f"import sys\nsys.path.insert(0, {str(EXAMPLE.parent)!r})\nimport train\n"
        f"def build():\n    return train.build(batch_size={batch_size})\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "tidegauge", "estimate", f"{function}:build", "--python", gpu_python, "--json"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert said.returncode in (0, 1), said.stderr
    estimate: dict[str, Any] = json.loads(said.stdout)
    print(
        json.dumps({"batch": batch_size, "real": real, "estimate": {k: estimate[k] for k in estimate if "peak" in k}})
    )
    assert estimate["peak_allocated_bytes"] == pytest.approx(real["allocated"], rel=0.03)
    assert estimate["peak_reserved_bytes"] == pytest.approx(real["reserved"], rel=0.1)
