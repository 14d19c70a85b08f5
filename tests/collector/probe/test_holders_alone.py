"""``test_probe_holders.py`` in a process of its own: what is searched is the program, as in a job, not pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "test_probe_holders.py"
CHECKOUT = HERE.parents[2]


def test_holders_are_found_in_a_process_like_a_jobs() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "unittest", FILE.stem], cwd=HERE,
        env={"PYTHONPATH": f"{CHECKOUT / 'collector'}:{CHECKOUT / 'tests'}"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-10_000:]
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    assert ran is not None, done.stderr[-1000:]
    assert int(ran[1]) == len(re.findall(r"^    def test_", FILE.read_text(), re.MULTILINE))
