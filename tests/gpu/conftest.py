"""Tests on a real GPU. The job runs under ``TIDEGAUGE_GPU_PYTHON``, else this python, else python3."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ASK = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


def _gpu_count(python: str) -> int:
    try:
        done = subprocess.run([python, "-c", ASK], capture_output=True, text=True, timeout=120, check=False)
        return int(done.stdout.strip() or 0)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return 0


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """An interpreter whose torch sees at least one real GPU."""
    candidates = [os.environ.get("TIDEGAUGE_GPU_PYTHON"), sys.executable, shutil.which("python3")]
    for python in dict.fromkeys(filter(None, candidates)):
        if _gpu_count(python):
            return python
    pytest.skip("no GPU that torch can use")


@pytest.fixture(scope="session")
def gpu_count(gpu_python: str) -> int:
    return _gpu_count(gpu_python)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path
