"""How the project's own environments are made (scripts/make_environment.sh)."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A package of one module."""
    path = tmp_path / "tg_whole-1.0-py3-none-any.whl"
    facts = "tg_whole-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("tg_whole.py", "")
        file.writestr(f"{facts}/METADATA", "Metadata-Version: 2.1\nName: tg-whole\nVersion: 1.0\n")
        file.writestr(f"{facts}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{facts}/RECORD", "")
    return path


def make_environment(folder: Path, *packages: Path) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "scripts" / "make_environment.sh")
    command = [script, "--python", sys.executable, *map(str, (folder, *packages))]
    environ = {**os.environ, "UV_OFFLINE": "1"}
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=100)


def imports(folder: Path) -> bool:
    return subprocess.run([folder / "bin" / "python", "-c", "import tg_whole"], check=False).returncode == 0


def test_an_environment_whose_making_was_interrupted_is_made_anew(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    failed = make_environment(folder, tmp_path / "away-1.0-py3-none-any.whl")
    assert failed.returncode != 0
    (folder / "half-a-package").touch()
    done = make_environment(folder, wheel)
    assert (done.returncode, done.stderr) == (0, "")
    assert imports(folder)
    assert not (folder / "half-a-package").exists()


def test_an_environment_that_is_whole_is_kept(wheel: Path, tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    assert make_environment(folder, wheel).returncode == 0
    (folder / "a-users-own-file").touch()
    assert make_environment(folder, wheel).returncode == 0
    assert (folder / "a-users-own-file").exists()
    assert imports(folder)
