"""The estimate of a job and the profile of its run, in one table: they agree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.estimate.interpreter import estimate_python

pytestmark = pytest.mark.rig

JOB = Path(__file__).parents[1] / "rig_jobs" / "estimated_steps.py"
GIVE_UP_S = 200.0


def tidegauge(*arguments: str) -> str:
    command = [sys.executable, "-m", "tidegauge", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=GIVE_UP_S).stdout


def test_estimate_and_profile_of_a_job_agree(rig: Rig, tmp_path: Path) -> None:
    estimate, snapshot = tmp_path / "estimate.json", tmp_path / "run.pickle"
    answer = tidegauge("estimate", f"{JOB}:build", "--quick", "--json", "--python", estimate_python())
    estimate.write_text(answer, encoding="utf-8")
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    subprocess.run([str(rig.python), str(JOB), str(snapshot)], env=environ, check=True, timeout=GIVE_UP_S)

    print(tidegauge("profile", str(snapshot), "--estimate", str(estimate)))
    parts = json.loads(tidegauge("profile", str(snapshot), "--estimate", str(estimate), "--json"))["estimate"]
    found = {one["part"]: (one["estimate_bytes"], one["profile_bytes"]) for one in parts}
    for part in ("parameters", "gradients", "optimizer state", "activations", "inputs"):
        estimated, held = found[part]
        assert estimated == pytest.approx(held, rel=0.01, abs=1 << 20), part
