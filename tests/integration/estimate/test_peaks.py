"""The estimate of real jobs beside what they took on an H200: the bounds that the documentation states."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path

import pytest

from integration.estimate.interpreter import ROOT, estimate_python
from matrix import turn

MEDIAN_ERROR = 0.03
WORST_ERROR = 0.10
LINES = Path(ROOT) / "tests" / "data" / "estimate" / "peaks.jsonl"


@pytest.mark.timeout(900)
@turn(0)
def test_peak_reserved_of_27_recorded_jobs_is_within_the_bounds() -> None:
    command = [estimate_python(), str(Path(ROOT) / "bench" / "estimate.py"), "--json", "--lines", str(LINES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=880)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    table = "\n".join(f"{one['job']:44s} reserved {one['reserved_error']:+.2%}" for one in found)
    errors = [abs(one["reserved_error"]) for one in found]
    assert len(errors) == 27, table
    assert statistics.median(errors) <= MEDIAN_ERROR, table
    assert max(errors) <= WORST_ERROR, table
