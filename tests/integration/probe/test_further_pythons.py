"""The probe's tests under further Pythons: it goes into environments that are not ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.needs import missing
from matrix import PYTHONS, pythons

CHECKOUT = Path(__file__).parents[3]


def interpreter(version: str) -> Path | None:
    """An interpreter of that version: pyenv's, Debian's in ``.rig`` (``scripts/debian_python.sh``), or the one on PATH
    if it really is what its name says."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    debian = CHECKOUT / ".rig" / f"python{version}" / "usr" / "bin" / f"python{version}"
    on_path = shutil.which(f"python{version}")
    candidates = [*sorted(pyenv.glob(f"{version}.*/bin/python")), debian, *([Path(on_path)] if on_path else [])]
    for candidate in filter(Path.exists, candidates):
        answer = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False)
        if re.fullmatch(rf"Python {re.escape(version)}\.\S+\s*", answer.stdout):
            return candidate
    return None


@pytest.mark.parametrize("version", pythons(*PYTHONS))
def test_probe_works_under_a_further_python(version: str) -> None:
    python = interpreter(version)
    if python is None:
        missing(f"no Python {version} on this machine")
    tests = CHECKOUT / "tests"
    result = subprocess.run(
        [python, "-W", "error", "-m", "unittest", "discover",
         "-s", tests / "collector" / "probe", "-t", tests / "collector" / "probe", "-p", "test_probe_*.py"],
        env={"PATH": os.defpath, "PYTHONPATH": f"{CHECKOUT / 'collector'}:{tests}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(r"Ran \d{3,} tests", result.stderr), result.stderr[-300:]
