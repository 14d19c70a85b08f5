"""The probe's tests under further Pythons: it goes into environments that are not ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from integration.interpreters import interpreter
from integration.needs import missing
from matrix import PYTHONS, pythons
from tidegauge.cli.main import COMMANDS

CHECKOUT = Path(__file__).parents[3]


DATA = CHECKOUT / "tests" / "data"
OOM = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 77.10 GiB already allocated)"
WORKS = {
    "--version": (),
    "oom": ("log.txt",),
    "run": ("--", "true"),
    "diff": ("early.pickle", "late.pickle"),
    "export": ("early.pickle", "-o", "early.json"),
    "detect": (str(DATA.parent / "exporter" / "data" / "ddp_rank1_leak.csv.gz"),),
    "replay": ("early.pickle",),
    "whatif": ("early.pickle",),
    "profile": ("early.pickle",),
}
"""What needs the standard library alone, with a call of each."""
ELSEWHERE = {"attach": "no process 999999", "estimate": "cannot be run", "snapshot": "no process 999999"}
"""What looks at processes or interpreters that are not there, and says so."""
CALLS = {
    "attach": ("999999",),
    "estimate": ("train:build", "--python", "/none"),
    "snapshot": ("999999",),
    "policy": ("show",),
    "config": ("show",),
    "grafana": ("export", "boards"),
    "report": ("early.pickle",),
    "job": ("4711",),
    "forget": ("ada",),
    "whois": ("user-3f9a1c0b77de",),
}


@pytest.mark.parametrize("version", pythons(*PYTHONS))
def test_every_command_works_under_a_further_python_or_says_what_it_needs(version: str, tmp_path: Path) -> None:
    python = interpreter(version)
    if python is None:
        missing(f"no Python {version} on this machine")
    shutil.copy(DATA / "allocator" / "snapshots" / "stacks.pickle.gz", tmp_path / "early.pickle")
    shutil.copy(DATA / "allocator" / "snapshots" / "ring.pickle.gz", tmp_path / "late.pickle")
    (tmp_path / "log.txt").write_text(OOM)
    parts = ("collector", "exporter", "scheduler_hooks")
    for command in (*COMMANDS, "--version"):
        done = subprocess.run(
            [python, "-m", "tidegauge", command, *WORKS.get(command, CALLS.get(command, ()))],
            env={
                "PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path),
                "TIDEGAUGE_STATE_DIR": str(tmp_path / "state"), "TIDEGAUGE_RUN_DIR": str(tmp_path / "run"),
                "PYTHONPATH": ":".join(str(CHECKOUT / part) for part in parts),
            },
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        answer = f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in answer, answer
        if command in WORKS or (command == "report" and version != "3.9"):
            assert done.returncode in (0, 1), answer
            continue
        needs = ELSEWHERE.get(command, r"needs (Python 3\.10 or later|the package)")
        assert done.returncode in (2, 3), answer
        assert re.search(needs, done.stderr), answer


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
