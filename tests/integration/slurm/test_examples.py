"""The scripts of examples/slurm on a real Slurm: accepted as they are, and what they start in which tasks.

``torchrun``, ``python`` and ``tidegauge`` are stand-ins that write down how they were called; what they do is tested
elsewhere. The program that saves at a signal runs on the fake-GPU rig.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from integration.slurm.box import CHECKOUT, SERVICE_PYTHON, SlurmBox
from integration.slurm.conftest import StartBox
from integration.training_job import TrainingJob, available

EXAMPLES = CHECKOUT / "examples"
SCRIPTS = sorted(path.name for path in (EXAMPLES / "slurm").glob("*.sbatch"))
STAND_IN = f"""#!/bin/bash
{SERVICE_PYTHON} - "$0" "$@" <<'END' >> calls.jsonl
import json, os, sys
kept = {{name: value for name, value in os.environ.items() if name.startswith(("TIDEGAUGE_", "SLURM"))}}
print(json.dumps({{"tool": os.path.basename(sys.argv[1]), "arguments": sys.argv[2:], "environ": kept}}))
END
[ "${{0##*/}}" != tidegauge ] || {{ shift 3; exec "$@"; }}  # tidegauge run --with-service -- CMD
"""


@pytest.fixture(scope="module")
def box(start_box: StartBox) -> SlurmBox:
    return start_box(nodes=2, gpus=2)


@pytest.fixture
def folder(box: SlurmBox, tmp_path: Path) -> Path:
    """A copy of the examples in which alice submits, and the stand-ins in ``bin``."""
    place = box.work / tmp_path.name
    shutil.copytree(EXAMPLES, place)
    (place / "bin").mkdir()
    for name in ("torchrun", "python", "tidegauge"):
        (place / "bin" / name).write_text(STAND_IN)
        (place / "bin" / name).chmod(0o755)
    box.run("chown", "-R", "alice", place)
    return place / "slurm"


def submit(box: SlurmBox, folder: Path, script: str, *options: str) -> str:
    path = f"{folder.parent / 'bin'}:/usr/local/bin:/usr/bin:/bin"
    done = box.run("sbatch", "--parsable", *options, script, user="alice", cwd=folder, environ={"PATH": path})
    return done.stdout.strip()


def calls(box: SlurmBox, folder: Path, script: str, *options: str, states: int = 1) -> list[dict[str, Any]]:
    """How the stand-ins were called in a job that has run to its end."""
    job = submit(box, folder, script, *options)
    logs = "\n".join(path.read_text() for path in folder.glob("*.log"))
    box.wait(job, "\n".join(["COMPLETED"] * states), within_s=60)
    file = folder / "calls.jsonl"
    assert file.exists(), logs
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_example_is_looked_at() -> None:
    assert SCRIPTS == ["array.sbatch", "own_service.sbatch", "signal.sbatch", "torchrun.sbatch"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_slurm_would_start_it_without_the_plugin(box: SlurmBox, folder: Path, script: str) -> None:
    tried = box.run("sbatch", "--test-only", script, user="alice", cwd=folder)
    assert "to start at" in tried.stderr


@pytest.mark.parametrize("script", sorted(set(SCRIPTS) - {"own_service.sbatch"}))
def test_slurm_example_allows_requeue_and_appends_to_its_log(box: SlurmBox, folder: Path, script: str) -> None:
    job = submit(box, folder, script, "--hold")
    told = box.run("scontrol", "show", "job", job).stdout
    assert "Requeue=1" in told
    assert "Comment=tidegauge:requeue" in told
    assert "#SBATCH --open-mode=append\n" in (folder / script).read_text()
    box.run("scancel", job)


def test_torchrun_is_started_once_a_node_and_meets_on_the_first(box: SlurmBox, folder: Path) -> None:
    started = calls(box, folder, "torchrun.sbatch")
    assert [call["tool"] for call in started] == ["torchrun"] * 2
    assert {call["environ"]["SLURMD_NODENAME"] for call in started} == {"n1", "n2"}
    (arguments,) = {tuple(call["arguments"]) for call in started}
    job = started[0]["environ"]["SLURM_JOB_ID"]
    assert arguments[:4] == ("--nnodes=2", "--nproc-per-node=2", f"--rdzv-id={job}", "--rdzv-backend=c10d")
    assert arguments[4] == f"--rdzv-endpoint=n1:{20000 + int(job) % 20000}"
    assert arguments[-1] == f"last-{job}.pt"
    assert (folder / arguments[5]).resolve().exists()
    assert {call["environ"]["TIDEGAUGE_PROFILE"] for call in started} == {"auto"}


def test_each_task_of_the_array_has_work_and_a_checkpoint_of_its_own(box: SlurmBox, folder: Path) -> None:
    started = calls(box, folder, "array.sbatch", states=4)
    by_task = {call["environ"]["SLURM_ARRAY_TASK_ID"]: call["arguments"] for call in started}
    array = started[0]["environ"]["SLURM_ARRAY_JOB_ID"]
    assert {task: arguments[-4:] for task, arguments in by_task.items()} == {
        str(task): ["--steps", steps, "--checkpoint", f"last-{array}_{task}.pt"]
        for task, steps in enumerate(("200", "400", "800", "1600"))
    }
    assert {call["environ"]["TIDEGAUGE_PROFILE"] for call in started} == {"stats"}


def test_slurm_example_keeps_variables_set_by_the_plugin(box: SlurmBox, folder: Path) -> None:
    (call,) = calls(
        box, folder, "signal.sbatch",
        "--export=ALL,TIDEGAUGE_PROFILE=trace,TIDEGAUGE_CHECKPOINT_SIGNAL=RTMIN",
    )  # fmt: skip
    assert (call["environ"]["TIDEGAUGE_PROFILE"], call["environ"]["TIDEGAUGE_CHECKPOINT_SIGNAL"]) == ("trace", "RTMIN")


def test_the_signal_and_the_folder_for_its_proof_are_declared(box: SlurmBox, folder: Path) -> None:
    (call,) = calls(box, folder, "signal.sbatch")
    checkpoints = folder / f"checkpoints-{call['environ']['SLURM_JOB_ID']}"
    assert call["environ"]["TIDEGAUGE_CHECKPOINT_SIGNAL"] == "USR2"
    assert call["environ"]["TIDEGAUGE_CHECKPOINT_PATH"] == str(checkpoints)
    assert call["arguments"] == ["train_on_signal.py", "--steps", "2000", "--checkpoints", str(checkpoints)]
    assert checkpoints.is_dir()


def test_the_own_service_is_around_srun_and_not_inside(box: SlurmBox, folder: Path) -> None:
    service, *started = calls(box, folder, "own_service.sbatch")
    assert service["tool"] == "tidegauge"
    assert service["arguments"][:5] == ["run", "--with-service", "--", "srun", "torchrun"]
    # The batch script's own step, which Slurm 26.05 and later say (SLURM_BATCH_SCRIPT, slurm.h) and older ones do not.
    assert service["environ"].get("SLURM_STEP_ID", "-5") == "-5"
    assert [call["tool"] for call in started] == ["torchrun"] * 2


@pytest.mark.rig
def test_the_program_saves_at_its_signal_and_goes_on_from_there(rig: Rig, tmp_path: Path) -> None:
    """Without Slurm: the ring and the command socket are the agent's way to it."""
    if (reason := available()) is not None:
        missing(reason)
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    program = str(EXAMPLES / "slurm/train_on_signal.py")

    def start(steps: int) -> TrainingJob:
        return TrainingJob(
            rig, tmp_path, [program, f"--checkpoints={checkpoints}", f"--steps={steps}"], TIDEGAUGE_PROFILE="stats",
            TIDEGAUGE_CHECKPOINT_SIGNAL="USR2", TIDEGAUGE_CHECKPOINT_PATH=str(checkpoints),
        )  # fmt: skip

    first = start(100_000_000)
    try:
        first.wait_for(
            lambda: [one for one in first.ask_all(command="ping") if one["step"] > 2 and one["checkpoint"] == "signal"]
        )
        request = {"command": "checkpoint", "id": "r1", "way": "signal", "at_step": None, "ranks": 1}
        (taken_on,) = first.ask_all(**request, deadline_unix_s=time.time() + 60.0)
        assert taken_on["ok"], taken_on
        first.wait_for(lambda: [one for one in first.ask_all(command="checkpoint", id="r1") if one["stage"] == "done"])
    finally:
        first.end()
    (saved,) = checkpoints.glob("step-*.pt")
    step = int(saved.stem.removeprefix("step-"))

    second = start(step + 30)
    try:
        assert second.result() == 0, second.said()
        assert f"goes on from step {step}" in second.output.read_text()
    finally:
        second.end()
