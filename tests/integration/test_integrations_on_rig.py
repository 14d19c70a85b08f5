"""The callbacks and the examples under real Lightning, transformers and Ray Train: torch's CUDA build on the fake-GPU
rig, rings read and ranks asked with the agent's own reader and client."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fakegpu.rig import Rig
from integration.needs import missing
from integration.training_job import ROOT, TrainingJob, available
from matrix import in_turns, turn

pytestmark = [pytest.mark.rig, pytest.mark.timeout(2000)]

EXAMPLES = ROOT / "examples"
JOBS = Path(__file__).parent / "trainer_jobs"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]

Start = Callable[..., TrainingJob]


@pytest.fixture
def trainers() -> Path:
    """The Python that has them."""
    reason = available()
    if reason is not None:
        missing(reason)
    return TrainingJob.python


@pytest.fixture
def start(rig: Rig, trainers: Path, tmp_path: Path) -> Iterator[Start]:
    """Starts jobs, all in one folder, and ends them."""
    jobs: list[TrainingJob] = []

    def begin(*command: str | Path, ranks: int = 1, **variables: str) -> TrainingJob:
        launcher = TORCHRUN if ranks > 1 and "ray" not in str(command[0]) else []
        jobs.append(TrainingJob(rig, tmp_path, [*launcher, *command], ranks=ranks, **variables))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.end()


def test_the_trainers_python_waits_for_pytorchs_threads_at_its_end_as_the_rigs_does(trainers: Path) -> None:
    """Else one of a hundred jobs is aborted by PyTorch there: see fakegpu/inside/rig_settles.py."""
    command = [str(trainers), "-c", "import sys; print('rig_settles' in sys.modules)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"


def told(job: TrainingJob) -> dict[str, Any]:
    """The JSON line that a job prints after its training; it then waits."""

    def lines() -> list[str]:
        return [line for line in job.output.read_text().splitlines() if line.startswith('{"global_step"')]

    found: dict[str, Any] = json.loads(job.wait_for(lines)[0])
    return found


def warnings_of(job: TrainingJob) -> list[str]:
    return [line for line in job.output.read_text().splitlines() if line.startswith("tidegauge:")]


# --------------------------------------------------------------------------- examples


@pytest.mark.parametrize(
    ("example", "arguments", "ranks", "goes_on_from"),
    in_turns(
        [
            ("torchrun", ["--backend=gloo"], 2, "goes on from step {step}"),
            ("lightning", ["--devices=1"], 1, "goes on from step {step}"),
            ("huggingface", ["--ddp-backend=gloo"], 2, "goes on from output/checkpoint-{step}"),
            ("ray_train", ["--backend=gloo", "--storage={folder}/runs"], 2, "goes on from step {step}"),
        ]
    ),
)
def test_an_example_saves_on_request_is_killed_and_goes_on_from_there(
    start: Start, tmp_path: Path, example: str, arguments: list[str], ranks: int, goes_on_from: str
) -> None:
    command = [EXAMPLES / example / "train.py", *(each.format(folder=tmp_path) for each in arguments)]
    first = start(*command, "--steps=1000000", ranks=ranks, TIDEGAUGE_PROFILE="stats")
    ended = first.saves_on_request()
    assert [one["stage"] for one in ended] == ["done"] * ranks, ended
    first.end()
    step = ended[0]["step"]

    second = start(*command, f"--steps={step + 30}", ranks=ranks, TIDEGAUGE_PROFILE="stats")
    assert second.result() == 0, second.said()
    assert goes_on_from.format(step=step) in second.output.read_text()
    found = second.ranks()
    assert [one.identity.rank for one in found] == list(range(ranks))
    if example != "ray_train":  # Ray kills its workers: their last step may be in no record
        assert [one.steps for one in found] == [30] * ranks


def test_the_srun_example_starts_ranks_that_know_their_place(start: Start, tmp_path: Path) -> None:
    """Under a ``srun`` of our own that starts two tasks with Slurm's variables, as no Slurm is here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {
        "srun": """#!/bin/bash
        shift  # --kill-on-bad-exit
        export SLURM_NTASKS=2 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2
        for task in 0 1; do SLURM_PROCID=$task SLURM_LOCALID=$task "$@" & tasks+=($!); done
        for task in "${tasks[@]}"; do wait "$task" || exit 1; done
        """,
        "scontrol": "#!/bin/bash\necho localhost\n",
        "python": f'#!/bin/bash\nexec {TrainingJob.python} "$@"\n',
    }.items():
        (tools / name).write_text(text)
        (tools / name).chmod(stat.S_IRWXU)
    shutil.copy(EXAMPLES / "torchrun" / "train.py", tmp_path)
    run_bash = "import os, sys; os.execvp('bash', ['bash', *sys.argv[1:]])"
    job = start(
        "-c", run_bash, str(EXAMPLES / "srun" / "train.sbatch"), "--backend=gloo", "--steps=30",
        PATH=f"{tools}:{os.environ['PATH']}", SLURM_JOB_ID="4711", SLURM_JOB_NODELIST="localhost",
        SLURM_RESTART_COUNT="2",
    )  # fmt: skip
    assert job.result() == 0, job.said()
    found = job.ranks()
    assert [(one.identity.rank, one.identity.local_rank, one.identity.world_size) for one in found] == [
        (0, 0, 2),
        (1, 1, 2),
    ]
    assert {(one.identity.job_id, one.identity.attempt, one.identity.profile) for one in found} == {("4711", 2, "auto")}
    assert [one.steps for one in found] == [30, 30]


# --------------------------------------------------------------------------- Lightning


@pytest.mark.parametrize("package", in_turns(["lightning.pytorch", "pytorch_lightning"], 1))
def test_lightning_steps_are_global_steps_with_accumulation_and_validation(start: Start, package: str) -> None:
    job = start(JOBS / "lightning_fit.py", "accumulate", "--package", package)
    assert told(job) == {"global_step": 20, "raised": None}
    (ping,) = job.ask_all(command="ping")
    assert (ping["level"], ping["checkpoint"]) == ("trace", None)  # nothing is left registered
    job.stop.touch()
    assert job.result() == 0, job.said()
    (rank,) = job.ranks()
    assert (rank.steps, rank.identity.profile) == (20, "trace")
    assert warnings_of(job) == []


@turn(5)
def test_lightning_shows_the_memory_profile_of_two_steps_at_the_end_of_fit(start: Start) -> None:
    job = start(JOBS / "lightning_fit.py", "profiled")
    assert told(job)["global_step"] == 20
    shown = job.output.read_text()
    assert "Allocated at the peak" in shown
    assert "4 backward passes" in shown  # two of each step's
    assert re.search(r"optimizer state +Model\.first\n", shown)
    assert warnings_of(job) == []


@turn(0)
def test_lightning_counts_a_batch_of_two_optimizers_as_one_step(start: Start) -> None:
    job = start(JOBS / "lightning_fit.py", "two-optimizers")
    assert told(job)["global_step"] == 20  # Lightning's own counts each optimizer
    job.stop.touch()
    assert job.result() == 0, job.said()
    (rank,) = job.ranks()
    assert rank.steps == 10


@turn(1)
def test_lightning_trains_on_when_tidegauge_fails_and_says_so_once(start: Start) -> None:
    job = start(JOBS / "lightning_fit.py", "broken")
    assert told(job)["global_step"] == 20
    assert len(warnings_of(job)) == 1
    assert "on_train_batch_end failed; training goes on" in warnings_of(job)[0]


@turn(2)
def test_lightning_leaves_nothing_registered_when_the_training_raises(start: Start) -> None:
    job = start(JOBS / "lightning_fit.py", "interrupted")
    assert told(job) == {"global_step": 5, "raised": "the loss is not what it was"}
    (ping,) = job.ask_all(command="ping")
    assert ping["checkpoint"] is None


@turn(3)
def test_a_lightning_rank_that_cannot_save_leaves_no_other_waiting_and_the_next_request_is_served(
    start: Start, tmp_path: Path
) -> None:
    in_the_way = tmp_path / "checkpoints"
    in_the_way.write_text("a file where rank 0 wants to make a folder")
    job = start(JOBS / "lightning_fit.py", "saves", ranks=2)
    ended = job.saves_on_request("r1")
    assert "failed" in {one["stage"] for one in ended}
    assert any("FileExistsError" in one["detail"] for one in ended), ended
    in_the_way.unlink()
    ended = job.saves_on_request("r2")
    assert [one["stage"] for one in ended] == ["done", "done"], ended
    (checkpoint,) = in_the_way.iterdir()
    assert checkpoint.name == f"tidegauge-step-{ended[0]['step']}.ckpt"
    job.stop.touch()
    assert told(job)["raised"] is None
    assert job.result() == 0, job.said()


# --------------------------------------------------------------------------- Hugging Face


def test_hugging_face_steps_are_global_steps_with_accumulation_and_evaluation(start: Start) -> None:
    job = start(JOBS / "hugging_face_train.py", "accumulate", CUDA_VISIBLE_DEVICES="0")
    assert told(job) == {"global_step": 20, "saved": [], "written": []}
    (ping,) = job.ask_all(command="ping")
    assert (ping["level"], ping["checkpoint"]) == ("trace", None)
    job.stop.touch()
    assert job.result() == 0, job.said()
    (rank,) = job.ranks()
    assert (rank.steps, rank.identity.profile) == (20, "trace")


@turn(4)
def test_hugging_face_shows_the_memory_profile_of_two_steps_at_the_end_of_train(start: Start) -> None:
    job = start(JOBS / "hugging_face_train.py", "profiled", CUDA_VISIBLE_DEVICES="0")
    assert told(job)["global_step"] == 20
    shown = job.output.read_text()
    assert "4 backward passes" in shown  # two of each step's
    assert "Allocated at the peak" in shown
    assert "GPT2LMHeadModel" in shown
    [page] = warnings_of(job)
    # As in many a training environment, the package of pages is not there.
    assert page.startswith("tidegauge: the page of the memory profile is not written: a page needs the package")


@turn(5)
def test_hugging_face_saves_once_in_a_step_in_which_the_trainer_saves_too(start: Start, tmp_path: Path) -> None:
    job = start(JOBS / "hugging_face_train.py", "saves", CUDA_VISIBLE_DEVICES="0")
    (ended,) = job.saves_on_request(multiple_of=10)
    assert (ended["stage"], ended["step"] % 10) == ("done", 0), ended
    job.stop.touch()
    facts = told(job)
    assert ended["step"] in facts["saved"]  # other callbacks are told
    assert facts["written"] == facts["saved"] == sorted(set(facts["saved"]))
    assert len(list((tmp_path / "output").iterdir())) == 2  # save_total_limit


@turn(0)
def test_hugging_face_is_not_asked_for_a_checkpoint_that_would_lose_the_optimizer(start: Start) -> None:
    job = start(JOBS / "hugging_face_train.py", "model-only", CUDA_VISIBLE_DEVICES="0")
    assert told(job)["global_step"] == 20
    (line,) = warnings_of(job)
    assert "no checkpoint can be asked for: with save_only_model" in line


@turn(1)
def test_hugging_face_trains_on_when_tidegauge_fails_and_says_so_once(start: Start) -> None:
    job = start(JOBS / "hugging_face_train.py", "broken", CUDA_VISIBLE_DEVICES="0")
    assert told(job)["global_step"] == 20
    (line,) = warnings_of(job)
    assert "on_step_end failed; training goes on" in line


# --------------------------------------------------------------------------- Ray Train


def test_a_ray_worker_that_fails_to_save_leaves_no_other_waiting_and_all_parts_of_the_next_are_registered(
    start: Start,
) -> None:
    job = start(JOBS / "ray_fit.py", ranks=2)
    ended = job.saves_on_request("r1")
    assert [one["stage"] for one in ended] == ["failed", "failed"], ended
    details = sorted(one["detail"] for one in ended)
    assert "OSError: the disk is full" in details[0]
    assert "1 other workers failed to save: nothing is reported" in details[1]
    ended = job.saves_on_request("r2")
    assert [one["stage"] for one in ended] == ["done", "done"], ended
    identities = [one.identity for one in job.ranks()]
    assert [(one.rank, one.profile, one.job_name) for one in identities] == [
        (0, "trace", "two-workers"),
        (1, "trace", "two-workers"),
    ]
    job.stop.touch()
    assert job.result() == 0, job.said()
    assert f"['rank0.pt', 'rank1.pt'] tidegauge-step-{ended[0]['step']}-" in job.output.read_text()
