"""Limits of GPU memory in tests that train, with the real PyTorch."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

import tidegauge
from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

TESTS = """
import pytest
import torch


def train():
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.zeros(4096, 1024, device="cuda")).sum().backward()
        optimizer.step()


@pytest.mark.limit_gpu_memory("30 MiB")
def test_too_much():
    train()


@pytest.mark.limit_gpu_memory("1 GiB")
def test_enough():
    train()
    torch.cuda.reset_peak_memory_stats()


@pytest.mark.limit_gpu_memory("30 MiB")
def test_resets_its_peak():
    train()
    torch.cuda.reset_peak_memory_stats()


def test_without_a_limit():
    torch.zeros(1 << 20, device="cuda")
"""


def test_a_limit_fails_with_the_composition_of_the_peak_and_the_report_lists_all(rig: Rig, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging", "pygments"):  # the rig has no pytest
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        place = Path(found.origin)
        place = place.parent if place.name == "__init__.py" else place
        (packages / place.name).symlink_to(place)
    (tmp_path / "test_steps.py").write_text(TESTS, encoding="utf-8")
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    environ["PYTHONPATH"] = os.pathsep.join((str(Path(str(tidegauge.__file__)).parents[1]), str(packages)))
    command = [
        str(rig.python), "-m", "pytest", "-p", "tidegauge.cli.profile.pytest_plugin", "-p", "no:cacheprovider",
        "--no-header", "--gpu-memory-report", "--rootdir", str(tmp_path), "test_steps.py",
    ]  # fmt: skip
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    said = done.stdout + done.stderr
    assert "2 failed, 2 passed" in said, said
    assert "of GPU memory allocated at the peak" in said
    assert "over 30.0 MiB" in said
    assert "optimizer state" in said
    assert "test_steps.py:10 in train" in said
    listed = said[said.index("highest peaks of allocated GPU memory") :].splitlines()[1:5]
    assert [line.partition("::")[2] for line in listed[:3]].count("test_without_a_limit") == 0
    # cuBLAS's workspace, 8.1 MiB, stays.
    assert listed[3].split() == ["12.1", "MiB", "test_steps.py::test_without_a_limit"]
