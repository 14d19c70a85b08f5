"""Recordings for memory profiles, taken in ranks that train on real GPUs: what PyTorch's counters and the model say."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from profiled_ranks import ONE_RANK, TWO_RANKS, Profiled, check_profiles, training
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.probe.evidence.module_names import COMPILED, OLD_TORCH

pytestmark = pytest.mark.gpu

ENVIRON = {**os.environ, "PROFILED_BACKEND": "cpu:gloo,cuda:nccl"}


def report(mode: str, found: list[Profiled]) -> None:
    """One line of figures a rank (``pytest -s``)."""
    for rank, (recording, profile, truth) in enumerate(found):
        first, last = recording.began_step, recording.ended_step
        usual_s = sorted(truth["durations_s"])[len(truth["durations_s"]) // 2]
        figures = {
            "mode": mode, "rank": rank, "exact": profile.is_exact, "unknown": round(profile.peak.unknown_share, 5),
            "events": profile.events, "usual_ms": round(1e3 * usual_s, 2),
            "steps_ms": [round(1e3 * one, 2) for one in truth["durations_s"][max(0, first - 2) : last + 4]],
        }  # fmt: skip
        print(json.dumps(figures))


@pytest.mark.parametrize("mode", ONE_RANK)
def test_a_profile_of_a_running_rank_is_what_pytorch_and_the_model_say(
    mode: str, gpu_python: str, tmp_path: Path
) -> None:
    with training(gpu_python, ENVIRON, tmp_path, mode) as ranks:
        found = check_profiles(ranks)
    report(mode, found)
    ((recording, profile, truth),) = found
    assert (recording.problem, recording.is_compiled) == (None, False)
    by_module = {one.path: one.own for one in profile.modules}
    assert sum(own.get(Category.PARAMETERS, 0) for own in by_module.values()) == truth["parameter_bytes"]
    assert profile.modules_missing in (None, OLD_TORCH)


@pytest.mark.parametrize("mode", TWO_RANKS)
def test_profiles_of_ranks_that_share_or_shard_a_model_over_nccl(
    mode: str, gpu_python: str, gpu_count: int, tmp_path: Path
) -> None:
    if gpu_count < 2:
        pytest.skip(f"needs 2 GPUs, this machine has {gpu_count}")
    with training(gpu_python, ENVIRON, tmp_path, mode) as ranks:
        found = check_profiles(ranks)
    report(mode, found)
    for recording, profile, _ in found:
        assert recording.problem is None
        assert StepPhase.BEFORE_OPTIMIZER not in {one.phase for one in profile.phases}
        models = {"FSDPModel" if mode == "fsdp2" else "Model"}
        assert {one.path for one in profile.modules if "." not in one.path} == models


def test_a_compiled_model_is_said_and_compiled_once(gpu_python: str, tmp_path: Path) -> None:
    with training(gpu_python, ENVIRON, tmp_path, "compile") as ranks:
        ((recording, profile, truth),) = check_profiles(ranks)
    assert (recording.problem, recording.is_compiled) == (None, True)
    assert profile.modules_missing == COMPILED
    assert len(set(truth["compiled_graphs"])) == 1, "nothing was compiled again"
