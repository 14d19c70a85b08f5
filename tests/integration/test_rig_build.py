"""Building and starting the rig: what is missing is named, what is there is not built twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu import build
from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

RIG_SCRIPT = Path(build.__file__).with_name("rig.py")


def test_an_environment_without_torch_is_told_how_to_get_it(tmp_path: Path) -> None:
    reason = Rig(venv=tmp_path / "venv", libraries=tmp_path / "lib").available()
    assert reason is not None
    assert f"no torch in {tmp_path / 'venv'}" in reason
    assert "`make rig`" in reason


def fake_torch(venv: Path) -> Path:
    torch = venv / "lib" / "python3.11" / "site-packages" / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "version.py").touch()
    return torch


def test_a_cpu_build_of_torch_is_refused(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    with pytest.raises(build.BuildError, match="not a CUDA build"):
        build.build(tmp_path / "out", tmp_path)


def test_nvidias_packages_beside_torch_are_refused_because_they_would_win(tmp_path: Path) -> None:
    torch = fake_torch(tmp_path)
    (torch / "lib" / "libtorch_cuda.so").touch()
    (torch.parent / "nvidia").mkdir()
    with pytest.raises(build.BuildError, match="holds NVIDIA's packages"):
        build.build(tmp_path / "out", tmp_path)


def test_a_missing_compiler_is_named_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fake_torch(tmp_path) / "lib" / "libtorch_cuda.so").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"gcc is not on PATH: install it .*apt-get install gcc"):
        build.build(tmp_path / "out", tmp_path)


def test_a_second_build_finds_everything_up_to_date(rig: Rig) -> None:
    assert build.build(rig.libraries, rig.venv) is False


def test_the_command_says_that_the_gpus_are_fake_and_passes_the_environment_on(rig: Rig, tmp_path: Path) -> None:
    code = "import os; print(os.environ['FAKEGPU_DEVICES'], os.environ['FAKEGPU_STATE'])"
    environ = {**rig.environ(), "FAKEGPU_STATE": str(tmp_path / "gpus"), "CUDA_VISIBLE_DEVICES": "0"}
    done = subprocess.run(
        [sys.executable, RIG_SCRIPT, "run", "--devices", "3", "--", "python", "-c", code],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"3 {tmp_path / 'gpus'}\n"
    assert done.stderr == "fakegpu: 3 fake GPUs, no real one, under python: kernels do nothing\n"


def test_a_command_that_does_not_exist_is_an_environment_error(rig: Rig) -> None:
    done = subprocess.run(
        [sys.executable, RIG_SCRIPT, "run", "--", "no-such-program"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "fakegpu: cannot start no-such-program" in done.stderr


def test_a_rig_without_devices_looks_like_a_machine_without_cuda(rig: Rig, tmp_path: Path) -> None:
    code = "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"
    done = subprocess.run(
        [rig.python, "-c", code],
        env=rig.environ(devices=0, state=tmp_path / "gpus"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "False 0\n", done.stderr
