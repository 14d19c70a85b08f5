"""Memory profiles of recorded training runs against what PyTorch's counters and the model itself say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tidegauge
import tidegauge_exporter
from fakegpu.rig import Rig

pytestmark = pytest.mark.rig

JOB = Path(__file__).parents[1] / "rig_jobs" / "profiled_steps.py"
MODES = ("eager", "amp", "checkpoint", "accumulate")


def ran(mode: str, rig: Rig, scratch: Path) -> dict[str, Any]:
    """What the run says of itself."""
    out = scratch / mode
    environ = rig.environ(devices=1, state=scratch / "gpus")
    environ["PYTHONPATH"] = os.pathsep.join(
        str(Path(str(one.__file__)).parents[1]) for one in (tidegauge, tidegauge_exporter)
    )
    subprocess.run([str(rig.python), str(JOB), mode, str(out)], env=environ, check=True, timeout=200)
    said: dict[str, Any] = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    return said


def profiled(mode: str, rig: Rig, scratch: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The profile of a run, and the truth about it."""
    truth, out = ran(mode, rig, scratch), scratch / mode
    command = [sys.executable, "-m", "tidegauge", "profile", "--json", f"{out}.pickle"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200)
    return json.loads(done.stdout), truth


@pytest.mark.parametrize("mode", MODES)
def test_the_profile_of_a_run_is_what_pytorch_counted(mode: str, rig: Rig, tmp_path: Path) -> None:
    profile, truth = profiled(mode, rig, tmp_path)
    held = profile["peak"]["by_category"]
    assert profile["is_exact"]
    assert profile["backward_passes"] == (6 if mode == "accumulate" else 3)
    assert profile["peak"]["allocated_bytes"] == truth["peak_allocated_bytes"] == sum(held.values())
    assert profile["reserved_bytes"] == truth["peak_reserved_bytes"]
    assert held["parameters"] == truth["parameter_bytes"]
    assert held["optimizer state"] == truth["state_bytes"]
    assert held.get("unknown", 0) <= 0.02 * truth["peak_allocated_bytes"]


def test_activations_are_fewer_with_checkpointing_and_with_half_precision(rig: Rig, tmp_path: Path) -> None:
    eager, amp, checkpointed = (
        profiled(mode, rig, tmp_path)[0]["peak"]["by_category"]["activations"]
        for mode in ("eager", "amp", "checkpoint")
    )
    assert checkpointed < eager
    assert amp < eager


def test_the_peak_that_checkpointing_would_have_is_the_one_that_it_has(rig: Rig, tmp_path: Path) -> None:
    advised = profiled("eager", rig, tmp_path)[0]["advice"]["measures"]
    (checkpointing,) = [one for one in advised if one["measure"] == "activation checkpointing"]
    real_bytes = ran("checkpoint", rig, tmp_path)["peak_allocated_bytes"]
    assert checkpointing["peak_bytes"] == pytest.approx(real_bytes, rel=0.02)


def test_a_script_profiles_its_own_steps_with_a_model_that_was_there_before(rig: Rig, tmp_path: Path) -> None:
    said = ran("block", rig, tmp_path)
    held = said["by_category"]
    assert (said["problem"], said["still_recording"]) == (None, False)
    assert said["profiled_peak_bytes"] == said["peak_allocated_bytes"] == sum(held.values())
    assert held["parameters"] == said["parameter_bytes"]
    assert held["optimizer state"] == said["state_bytes"]
    assert held.get("unknown", 0) <= 0.02 * said["peak_allocated_bytes"]
    assert "activation checkpointing" in said["measures"]
    assert said["batch_times"] > 1
    assert "profiled_steps.py" in said["page"]
    assert "at the peak, mostly" in said["drawn"]
