"""The probe's tests under every interpreter found: it goes into environments that are not ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[3]
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13", "3.14")


def interpreter(version: str) -> Path | None:
    """An interpreter of that version: pyenv's, else the one on PATH if it really is what its name says."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = sorted(pyenv.glob(f"{version}.*/bin/python"))
    on_path = shutil.which(f"python{version}")
    for candidate in [*candidates, *([Path(on_path)] if on_path else [])]:
        answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, timeout=30, check=False)
        if re.fullmatch(rf"Python {re.escape(version)}\.\S+\s*", answer.stdout):
            return candidate
    return None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_probe_works_under_this_python(version: str) -> None:
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    tests = CHECKOUT / "tests"
    result = subprocess.run(
        [python, "-W", "error", "-m", "unittest", "discover",
         "-s", tests / "collector" / "probe", "-t", tests / "collector" / "probe", "-p", "test_probe_*.py"],
        env={"PATH": os.defpath, "PYTHONPATH": f"{CHECKOUT / 'collector'}:{tests}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(r"Ran \d{3,} tests", result.stderr), result.stderr[-300:]
