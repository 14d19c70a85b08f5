"""Two minutes of the soak: that it runs, finds the planted leak, and ends with everything gone. What it says of the
service after so short a time is little; `make soak` takes an hour."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from soak.past import INCIDENTS

ROOT = Path(__file__).parents[2]
MINUTES = "2"

pytestmark = [pytest.mark.rig, pytest.mark.timeout(500)]


def test_two_minutes_of_churn(tmp_path: Path) -> None:
    reason = Rig().available()
    if reason is not None:
        missing(reason)
    paths = [str(ROOT / "tests"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "soak", "--minutes", MINUTES, "--json", str(tmp_path / "soak.json")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}, cwd=ROOT,
        capture_output=True, text=True, timeout=450, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    said = json.loads((tmp_path / "soak.json").read_text())
    verdicts = {row["name"]: row["verdicts"]["memory"]["word"] for row in said["processes"]}
    assert {"AgentActor", "CoordinatorActor", "NotifierActor", "raylet", "gcs_server", "supervisor"} <= verdicts.keys()
    assert verdicts["planted 50 kB/s"] == "leak"
    assert said["work"]["rows"]["incidents"] > INCIDENTS
