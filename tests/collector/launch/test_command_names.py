"""The name of a job without one: what its command line runs."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegauge.launch.command_names import command_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr 1e-4", "train"),
        ("/opt/venv/bin/python3.11 -u -X dev -W ignore src/train.py", "train"),
        ("python -m pkg.mod --epochs 3", "mod"),
        ("python -c 'import train'", "python"),
        ("./train.sh", "train"),
        ("bash train.sh 8", "train"),
        ("bash -e -o pipefail scripts/train.sh", "train"),
        ("bash -euo pipefail -c 'python train.py'", "train"),
        ("sh -c 'python train.py > log'", "train"),
        ("bash -lc 'cd /work && source env.sh; OMP_NUM_THREADS=4 python train.py'", "train"),
        ("env X=1 python train.py", "train"),
        ("env -u PYTHONPATH A=1 B=2 nohup ./simulate", "simulate"),
        ("torchrun --nproc-per-node 8 --rdzv-backend c10d train.py --config big.yaml", "train"),
        ("torchrun --standalone -m pkg.train", "train"),
        ("torchrun --nproc-per-node 8 --no-python ./worker", "torchrun"),
        ("python -m torch.distributed.run --nproc-per-node=2 train.py", "train"),
        ("accelerate launch --num_processes 2 train.py", "train"),
        ("accelerate launch -m pkg.train", "train"),
        ("deepspeed --num_gpus 4 train.py --deepspeed ds.json", "train"),
        ("srun -n 2 --mpi=pmix python train.py", "train"),
        ("srun --exclusive torchrun train.py", "train"),
        ("mpirun -np 4 -x PATH ./a.out 7", "a.out"),
        ("timeout -k 5 2h bash -c 'python train.py'", "train"),
        ("uv run train.py", "train"),
        ("uv run --with torch python -m pkg.train", "train"),
        ("conda run -n torch python train.py", "train"),
        ("apptainer exec --nv image.sif python train.py", "train"),
        ("nsys profile -o out python train.py", "train"),
        ("poetry run train", "train"),
        ("nice -n 19 -- ./simulate", "simulate"),
        ("/usr/bin/sleep 60", "sleep"),
        ("env A=1 python -c 'import train'", "python"),
        ("bash", "bash"),
        ("env", "env"),
        ("python", "python"),
        (".py", ".py"),
    ],
)
def test_a_job_goes_by_the_script_that_its_command_runs(command: str, name: str) -> None:
    assert command_name(shlex.split(command)) == name


def test_a_line_that_no_shell_reads_has_the_shells_name() -> None:
    assert command_name(["sh", "-c", "python it's.py"]) == "sh"


@given(
    st.lists(
        st.sampled_from(["env", "bash", "-c", "srun", "--", "python", "-m", "a.py", "X=1", "sh -c 'x", "", "-"])
        | st.text(),
        min_size=1,
    )
)
def test_any_command_has_a_name_or_is_its_own(words: list[str]) -> None:
    name = command_name(words)
    assert "/" not in name


def test_a_thousand_wrappers_are_no_trouble() -> None:
    assert command_name(["env"] * 5000 + ["python", "train.py"]) in ("env", "train")
