"""Tests of the holder search in processes of their own: what is searched is the program, as in a job, not pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[2]


@pytest.mark.parametrize("name", ["test_probe_holders", "test_probe_holder_growth", "test_probe_search_keeps_nothing"])
def test_holders_are_found_in_a_process_like_a_jobs(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "unittest", name], cwd=HERE,
        env={"PYTHONPATH": f"{CHECKOUT / 'collector'}:{CHECKOUT / 'tests'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-10_000:]
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None, done.stderr[-1000:]
    assert int(ran[1]) == len(re.findall(r"^    def test_", (HERE / f"{name}.py").read_text(), re.MULTILINE))
