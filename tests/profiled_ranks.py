"""Recordings for memory profiles, taken in ranks that train, against what PyTorch's counters and the model say.

The same on real GPUs (tests/gpu) and on the rig (tests/integration): only interpreter and environment differ.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from integration.server_process import free_port
from tidegauge.agent.evidence.checks import read_recording, read_snapshot
from tidegauge.analysis.profile.apart import profile_here
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_recording import RankRecording
from tidegauge.core.profile.step_profile import StepProfile
from tidegauge.core.run_dirs import process_of
from tidegauge.probe.activation.launch import activation_environ

JOBS = Path(__file__).parent / "integration" / "rig_jobs"
ONE_RANK = ("eager", "amp", "checkpoint")
TWO_RANKS = ("ddp", "fsdp1", "fsdp2")
GIVE_UP_S = 250.0
PROFILE: dict[str, Any] = {"command": "profile", "id": "p1", "reason": "a test", "most_s": 900}
"""Time for its search, a quarter of ``most_s``, is no matter here: machines that run tests may be slow."""


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


@contextmanager
def training(
    python: str, environ: Mapping[str, str], scratch: Path, mode: str = "", *, job: str = "profiled_rank.py"
) -> Iterator[list[Training]]:
    """The ranks of one job, once all of them train."""
    environ = {name: value for name, value in environ.items() if name != "PYTHONPATH"}
    environ |= activation_environ("auto", environ, pythonpath=True)
    environ["TIDEGAUGE_RUN_DIR"] = str(scratch / "run")
    count, port = 2 if mode in TWO_RANKS else 1, str(free_port())
    ranks: list[Training] = []
    try:
        for rank in range(count):
            place = [str(rank), port] if count > 1 else []
            process = subprocess.Popen(
                [python, str(JOBS / job), mode, *place],
                env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            ranks.append(Training(process, scratch / "run"))
        for one in ranks:
            one.wait_until_it_trains()
        yield ranks
    finally:
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
