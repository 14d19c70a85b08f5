"""Recordings for memory profiles, taken in ranks that train on the rig (``profiled_ranks``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fakegpu.rig import Rig
from integration.allocator.recordings import rig_of
from matrix import FIRST_TORCH, in_turns, torches
from profiled_ranks import ONE_RANK, PROFILE, TWO_RANKS, Training, check_profiles, training
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.probe.evidence.module_names import COMPILED, OLD_TORCH

pytestmark = pytest.mark.rig

RELEASES = ("2.9.1", FIRST_TORCH, "2.15.0")
BATCH_BYTES = 8 * 128 * 256 * 4
"""Of the tensor that goes from block to block."""

Start = Callable[..., list[Training]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as jobs:

        def start(rig: Rig, mode: str = "", *, job: str = "profiled_rank.py") -> list[Training]:
            environ = rig.environ(devices=2 if mode in TWO_RANKS else 1, state=tmp_path / "gpus")
            return jobs.enter_context(training(str(rig.python), environ, tmp_path, mode, job=job))

        yield start


@pytest.mark.parametrize("release", torches(RELEASES))
@pytest.mark.parametrize("mode", ONE_RANK)
def test_a_profile_of_a_running_rank_is_what_pytorch_and_the_model_say(mode: str, release: str, start: Start) -> None:
    ((recording, profile, truth),) = check_profiles(start(rig_of(release), mode))
    assert (recording.problem, recording.is_compiled) == (None, False)
    names = {one.name for one in recording.owned if one.category is Category.PARAMETERS}
    assert {"embed.weight", "blocks.0.norm.bias", "blocks.3.mix.2.weight", "head.bias"} < names
    assert {one.name for one in recording.owned if one.category is Category.GRADIENTS} == names
    assert {one.name for one in recording.owned if one.category is Category.OPTIMIZER_STATE} == names
    assert "blocks.1.scale" in {one.name for one in recording.owned if one.category is Category.BUFFERS}
    assert profile.is_exact or release != FIRST_TORCH
    by_module = {one.path: one.own for one in profile.modules}
    assert sum(own.get(Category.PARAMETERS, 0) for own in by_module.values()) == truth["parameter_bytes"]
    has_words = release != "2.9.1"
    assert profile.modules_missing == (None if has_words else OLD_TORCH)
    if mode == "eager":
        hidden_bytes = BATCH_BYTES * 4 if has_words else 0
        assert by_module["Model.blocks.1.mix.0"].get(Category.ACTIVATIONS, 0) == hidden_bytes


@pytest.mark.parametrize("mode", in_turns(TWO_RANKS, 3))
def test_profiles_of_ranks_that_share_or_shard_a_model(mode: str, rig: Rig, start: Start) -> None:
    for recording, profile, _ in check_profiles(start(rig, mode)):
        assert recording.problem is None
        phases = {one.phase for one in profile.phases}
        assert StepPhase.BEFORE_OPTIMIZER not in phases, "what the engine calls is the backward pass"
        models = {"FSDPModel" if mode == "fsdp2" else "Model"}
        assert {one.path for one in profile.modules if "." not in one.path} == models
        assert any(Category.ACTIVATIONS in one.own for one in profile.modules if one.path.endswith("blocks.3.mix.0"))
        if mode != "fsdp1":  # whose parameters are parts of flat ones
            assert "blocks.0.norm.bias" in {one.name for one in recording.owned}


def test_a_compiled_model_is_said_and_has_its_own_names(rig: Rig, start: Start) -> None:
    ((recording, profile, truth),) = check_profiles(start(rig, "compile"))
    assert profile.modules_missing == COMPILED
    assert len(set(truth["compiled_graphs"])) == 1, "nothing was compiled again"
    assert (recording.problem, recording.is_compiled) == (None, True)
    assert "blocks.0.norm.bias" in {one.name for one in recording.owned}


def test_a_recording_of_the_jobs_own_is_used_and_stays_on(rig: Rig, start: Start) -> None:
    ranks = start(rig, "recorded")
    ((recording, _, _),) = check_profiles(ranks, max_events=100_000)
    assert recording.problem == "the job itself records allocation history; it was left unchanged"


@pytest.mark.parametrize("release", torches(RELEASES))
def test_tensors_like_few_others_are_read_without_their_code(release: str, start: Start) -> None:
    (rank,) = start(rig_of(release), job="odd_tensors.py")
    assert rank.ask(**PROFILE)["ok"]
    rank.wait_until_done()
    recording = rank.recording()
    assert recording.problem is None
    sizes = {one.name: one.size_bytes for one in recording.owned}
    assert (sizes["wrapped"], sizes["part"]) == (512 * 1024 * 4, 4 << 20)
    assert rank.ask("ping")["errors"] == 0
    assert rank.end() == {"calls": [], "is_copied": False}


@pytest.mark.parametrize("mode", ["optimizer", "none"])
@pytest.mark.parametrize("asked", ["profile", "evidence"])
def test_no_step_has_a_higher_peak_while_its_objects_are_searched(
    asked: str, mode: str, rig: Rig, start: Start
) -> None:
    (rank,) = start(rig, mode, job="held_batches.py")
    if asked == "profile":
        assert rank.ask(**PROFILE)["ok"]
        rank.wait_until_done()
    else:
        assert rank.ask("evidence", id="e1", window_steps=5, holders=True)["ok"]
        rank.wait_until_done("evidence_status", "e1")
    first, *later = rank.end()["peaks"]
    assert len(later) > 10
    assert max(later) <= max(first, later[0])


def test_a_profile_gives_way_to_evidence(rig: Rig, start: Start) -> None:
    (rank,) = start(rig, "eager")
    assert rank.ask(**{**PROFILE, "most_s": 3600})["ok"]
    assert rank.ask("evidence", id="e1", window_steps=5, holders=False)["ok"]
    rank.wait_until_done()
    rank.wait_until_done("evidence_status", "e1")
    assert rank.recording().problem in (None, "evidence was asked for meanwhile"), "it may have been quick"
    assert {"early.snap", "late.snap", "evidence.json", "profile.json"} <= rank.files()
    assert not rank.end()["recording"]
