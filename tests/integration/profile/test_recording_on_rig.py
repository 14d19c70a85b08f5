"""Recordings for memory profiles, taken in ranks that train, against what PyTorch's counters and the model say."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakegpu.rig import Rig
from integration.allocator.recordings import rig_of
from integration.server_process import free_port
from matrix import FIRST_TORCH, torches
from tidegauge.agent.evidence.checks import read_recording, read_snapshot
from tidegauge.analysis.profile.apart import profile_here
from tidegauge.core.profile.categories import Category, StepPhase
from tidegauge.core.profile.rank_recording import RankRecording
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.run_dirs import process_of
from tidegauge.probe.activation.launch import activation_environ
from tidegauge.probe.evidence.module_names import COMPILED, OLD_TORCH

pytestmark = pytest.mark.rig

JOBS = Path(__file__).parents[1] / "rig_jobs"
RELEASES = ("2.9.1", FIRST_TORCH, "2.15.0")
ONE_RANK = ("eager", "amp", "checkpoint")
TWO_RANKS = ("ddp", "fsdp1", "fsdp2")
GIVE_UP_S = 100.0
BATCH_BYTES = 8 * 128 * 256 * 4
"""Of the tensor that goes from block to block."""
PROFILE: dict[str, Any] = {"command": "profile", "id": "p1", "reason": "a test", "most_s": 60}


class Training:
    """One rank, and its socket."""

    def __init__(self, process: subprocess.Popen[str], run_dir: Path) -> None:
        self.process = process
        self._run_dir = run_dir

    def wait_until_it_trains(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "training\n"

    def ask(self, command: str, **more: Any) -> Any:
        (path,) = self._run_dir.glob(f"*/{self.process.pid}-*.sock")
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(GIVE_UP_S)
            client.connect(str(path))
            client.sendall(json.dumps({"command": command, **more}).encode() + b"\n")
            with client.makefile() as replies:
                return json.loads(replies.readline())

    def wait_until_done(self, command: str = "profile_status", asked: str = "p1") -> None:
        give_up_s = time.monotonic() + GIVE_UP_S
        while self.ask(command, id=asked)["state"] != "done":
            assert time.monotonic() < give_up_s
            time.sleep(0.05)

    def recording(self) -> RankRecording:
        (path,) = self._run_dir.glob(f"*/{self.process.pid}-*.profile.json")
        process = process_of(path.name)
        assert process is not None
        return read_recording(path.read_bytes(), process)

    def profile(self, recording: RankRecording) -> StepProfile:
        assert recording.snapshot_file is not None
        (path,) = self._run_dir.glob(f"*/{recording.snapshot_file}")
        content, _ = read_snapshot(path.read_bytes())
        return profile_here(recording, content)

    def files(self) -> set[str]:
        return {path.name.partition(".")[2] for path in self._run_dir.glob(f"*/{self.process.pid}-*")}

    def end(self) -> dict[str, Any]:
        """It ends by itself, and says what is true."""
        out, _ = self.process.communicate(timeout=GIVE_UP_S)
        assert self.process.returncode == 0
        found: dict[str, Any] = json.loads(out)
        return found


Start = Callable[..., list[Training]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    ranks: list[Training] = []

    def start(rig: Rig, mode: str = "", *, job: str = "profiled_rank.py") -> list[Training]:
        count = 2 if mode in TWO_RANKS else 1
        environ = rig.environ(devices=count, state=tmp_path / "gpus")
        environ.pop("PYTHONPATH", None)
        environ |= activation_environ("auto", environ, pythonpath=True)
        environ["TIDEGAUGE_RUN_DIR"] = str(tmp_path / "run")
        port = str(free_port())
        for rank in range(count):
            place = [str(rank), port] if count > 1 else []
            process = subprocess.Popen(
                [str(rig.python), str(JOBS / job), mode, *place],
                env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            ranks.append(Training(process, tmp_path / "run"))
        for one in ranks:
            one.wait_until_it_trains()
        return ranks

    yield start
    for one in ranks:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


class Held(NamedTuple):
    """What a recording says of the model."""

    parameters: int
    gradients: int
    buffers: int
    state: int


def held_by(recording: RankRecording) -> Held:
    categories = (Category.PARAMETERS, Category.GRADIENTS, Category.BUFFERS, Category.OPTIMIZER_STATE)
    return Held(*(sum(one.size_bytes for one in recording.owned if one.category is each) for each in categories))


class Profiled(NamedTuple):
    recording: RankRecording
    profile: StepProfile
    truth: dict[str, Any]


def check_profiles(ranks: list[Training], **asked: Any) -> list[Profiled]:
    """Profile all ranks, and compare with what they say at their end."""
    for one in ranks:
        assert one.ask(**PROFILE, **asked)["ok"]
    for one in ranks:
        one.wait_until_done()
    found = [(one.recording(), one.profile(one.recording())) for one in ranks]
    truths = [one.end() for one in ranks]
    for (recording, profile), truth in zip(found, truths):
        assert truth["hooks"] == 0
        assert recording.is_complete
        assert (recording.ended_step - recording.began_step, len(recording.boundaries_us)) == (2, 3)
        names = ("parameter_bytes", "gradient_bytes", "buffer_bytes", "state_bytes")
        assert held_by(recording) == Held(*(truth[name] for name in names))
        at_peak = profile.peak
        assert at_peak.allocated_bytes == sum(at_peak.by_category.values())
        assert at_peak.allocated_bytes == max(truth["peaks"][recording.began_step : recording.ended_step])
        assert at_peak.by_category[Category.OPTIMIZER_STATE] == truth["state_bytes"]
        assert at_peak.unknown_share < 0.02
        assert not truth["recording"] or recording.problem is not None
    return [Profiled(*each, truth) for each, truth in zip(found, truths)]


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


@pytest.mark.parametrize("mode", TWO_RANKS)
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


def test_a_profile_gives_way_to_evidence(rig: Rig, start: Start) -> None:
    (rank,) = start(rig, "eager")
    assert rank.ask(**{**PROFILE, "most_s": 3600})["ok"]
    assert rank.ask("evidence", id="e1", window_steps=5, holders=False)["ok"]
    rank.wait_until_done()
    rank.wait_until_done("evidence_status", "e1")
    assert rank.recording().problem in (None, "evidence was asked for meanwhile"), "it may have been quick"
    assert {"early.snap", "late.snap", "evidence.json", "profile.json"} <= rank.files()
    assert not rank.end()["recording"]
