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

JOBS = Path(__file__).parents[1] / "rig_jobs"
JOB, BY_MODULE = JOBS / "profiled_steps.py", JOBS / "module_memory.py"
MODES = ("eager", "amp", "checkpoint", "accumulate")


def ran(mode: str, rig: Rig, scratch: Path, *, job: Path = JOB) -> dict[str, Any]:
    """What the run says of itself."""
    out = scratch / mode
    environ = rig.environ(devices=1, state=scratch / "gpus")
    environ["PYTHONPATH"] = os.pathsep.join(
        str(Path(str(one.__file__)).parents[1]) for one in (tidegauge, tidegauge_exporter)
    )
    subprocess.run([str(rig.python), str(job), mode, str(out)], env=environ, check=True, timeout=200)
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


@pytest.mark.parametrize("mode", ["block", "parallel", "replaced"])
def test_a_script_profiles_its_own_steps_with_a_model_that_was_there_before(
    mode: str, rig: Rig, tmp_path: Path
) -> None:
    said = ran(mode, rig, tmp_path)
    held = said["by_category"]
    assert (said["problem"], said["still_recording"]) == (None, False)
    assert said["profiled_peak_bytes"] == said["peak_allocated_bytes"] == sum(held.values())
    assert held["parameters"] == said["parameter_bytes"]
    assert held["optimizer state"] == said["state_bytes"]
    assert held.get("unknown", 0) <= 0.02 * said["peak_allocated_bytes"]
    assert "activation checkpointing" in said["measures"]
    assert said["batch_times"] > 1
    assert "profiled_steps.py" in said["page"]
    assert "Model.blocks.0.mix.0" in said["modules"]
    assert {path.partition(".")[0] for path in said["modules"]} == {"Model"}
    assert ("communication" in held) == (mode == "parallel")
    assert "at the peak, mostly" in said["drawn"]


def test_what_lbfgs_has_at_work_is_no_state(rig: Rig, tmp_path: Path) -> None:
    said = ran("lbfgs", rig, tmp_path)
    assert said["profiled_peak_bytes"] == said["peak_allocated_bytes"] == sum(said["by_category"].values())
    assert said["by_category"]["optimizer state"] == said["state_bytes"]
    assert "optimizer in the backward pass" not in said["measures"]


def test_gradients_of_torch_func_are_as_large_as_the_parameters(rig: Rig, tmp_path: Path) -> None:
    out = tmp_path / "func.json"
    environ = rig.environ(devices=1, state=tmp_path / "gpus")
    environ["PYTHONPATH"] = str(Path(str(tidegauge.__file__)).parents[1])
    subprocess.run([str(rig.python), str(JOBS / "func_gradients.py"), str(out)], env=environ, check=True, timeout=200)
    said = json.loads(out.read_text(encoding="utf-8"))
    assert said["by_category"]["gradients"] == said["parameter_bytes"]
    assert sum(said["by_category"].values()) == said["peak_allocated_bytes"]


MIB = 1 << 20
STATISTICS_BYTES = 2 * 8 * 256 * 4
"""Mean and deviation of each token, which a layer norm saves."""


def activations(said: dict[str, Any]) -> dict[str, int]:
    """Of each module that has some, without those below it."""
    return {path: own["activations"] for path, own in said["modules"].items() if "activations" in own}


def test_activations_of_each_module_are_what_autograd_saves(rig: Rig, tmp_path: Path) -> None:
    said = ran("plain", rig, tmp_path, job=BY_MODULE)
    blocks = {}
    for number in range(3):
        block = f"Net.blocks.{number}"
        blocks[f"{block}.norm"] = 4 * MIB + STATISTICS_BYTES
        blocks[f"{block}.mlp.0"] = blocks[f"{block}.mlp.1"] = 16 * MIB
        blocks[block] = 4 * MIB  # the sum, which the next norm saves
    found = activations(said)
    out_bytes = found.pop("Net.head")  # is not saved by the sum behind it, and alive
    assert found == {"Net.embed": 4 * MIB, **blocks}
    assert out_bytes == 8 * 256 * 8 * 4
    assert sum(found.values()) == said["saved_bytes"]
    assert sum(own.get("parameters", 0) for own in said["modules"].values()) == said["parameter_bytes"]
    assert "Net.blocks.*.mlp.0 (3)" in said["text"]


def test_checkpointing_leaves_each_block_its_input_alone(rig: Rig, tmp_path: Path) -> None:
    found = activations(ran("checkpoint", rig, tmp_path, job=BY_MODULE))
    del found["Net.head"]
    assert found == {"Net.embed": 4 * MIB, **{f"Net.blocks.{number}": 4 * MIB for number in range(3)}}


def test_gradients_that_zero_grad_frees_count_to_their_modules(rig: Rig, tmp_path: Path) -> None:
    modules = ran("backward", rig, tmp_path, job=BY_MODULE)["modules"].values()
    of = [[own.get(category, 0) for own in modules] for category in ("gradients", "parameters")]
    assert of[0] == of[1]
    assert any(of[0])


@pytest.mark.parametrize("mode", ["plain", "raises"])
def test_hooks_are_gone_and_the_users_word_is_back_after_the_block(mode: str, rig: Rig, tmp_path: Path) -> None:
    said = ran(mode, rig, tmp_path, job=BY_MODULE)
    assert (said["problem"], said["missing"], said["raised"]) == (None, None, mode == "raises")
    assert (said["word"], said["hooks"], said["optimizer_hooks"]) == ("the user's", [0, 0, 0], 0)


def test_a_process_that_compiles_gets_no_hooks_and_a_profile_that_says_so(rig: Rig, tmp_path: Path) -> None:
    said = ran("compiled", rig, tmp_path, job=BY_MODULE)
    assert "torch.compile" in said["missing"]
    assert activations(said) == {}
    assert sum(own.get("parameters", 0) for own in said["modules"].values()) == said["parameter_bytes"]
    assert "is not told by module: this process has called torch.compile" in said["text"]
    assert "are not told by module." in said["text"]
    assert "belong to no module" not in said["text"]
