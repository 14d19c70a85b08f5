from __future__ import annotations

from collections.abc import Sequence

import pytest

from tidegauge.cluster.ray_service.allocation import (
    LOOPBACK,
    Allocation,
    AllocationError,
    Ask,
    ask_slurm,
    can_overlap,
    head_address_for,
    join_command,
    join_environ,
    read_allocation,
    service_environ,
)

BATCH = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "gpu[01-03]", "SLURMD_NODENAME": "gpu01"}


def answers(text: str) -> Ask:
    """Slurm's commands, all of which print ``text``."""

    def ask(_command: Sequence[str]) -> str:
        return text

    return ask


def three_nodes(here: str | None) -> Allocation:
    return Allocation("4711", 0, here, ("gpu01", "gpu02", "gpu03"))


def test_a_batch_script_is_on_one_of_its_nodes() -> None:
    allocation = read_allocation({**BATCH, "SLURM_RESTART_COUNT": "2"}, answers("gpu01\ngpu02\ngpu03\n"))
    assert allocation == Allocation("4711", 2, "gpu01", ("gpu01", "gpu02", "gpu03"))
    assert allocation.others == ("gpu02", "gpu03")


@pytest.mark.parametrize("restarts", ["\u00b2", "-1", "1" * 5000])
def test_a_restart_count_that_is_none_is_zero(restarts: str) -> None:
    assert read_allocation({**BATCH, "SLURM_RESTART_COUNT": restarts}, answers("gpu01")).restarts == 0


def test_salloc_on_a_login_node_is_on_none() -> None:
    environ = {name: value for name, value in BATCH.items() if name != "SLURMD_NODENAME"}
    assert read_allocation(environ, answers("gpu01\ngpu02")).others == ("gpu01", "gpu02")


@pytest.mark.parametrize("missing", ["SLURM_JOB_ID", "SLURM_JOB_NODELIST"])
def test_elsewhere_it_says_what_to_do(missing: str) -> None:
    with pytest.raises(AllocationError, match=r"not inside a Slurm allocation.*sbatch"):
        read_allocation({name: value for name, value in BATCH.items() if name != missing}, answers(""))


def test_read_allocation_refuses_several_tasks_and_accepts_a_single_one() -> None:
    step = {**BATCH, "SLURM_STEP_ID": "0"}
    with pytest.raises(AllocationError, match="8 tasks"):
        read_allocation({**step, "SLURM_STEP_NUM_TASKS": "8"}, answers("gpu01"))
    assert read_allocation({**step, "SLURM_STEP_NUM_TASKS": "1"}, answers("gpu01")).nodes == ("gpu01",)


def test_a_command_of_slurms_that_is_not_there_is_named() -> None:
    with pytest.raises(AllocationError, match="no-such-command"):
        ask_slurm(["no-such-command"])


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(AllocationError, match="Invalid node"):
        ask_slurm(["sh", "-c", "echo Invalid node name >&2; exit 1"])


def test_a_node_alone_stays_on_loopback() -> None:
    assert head_address_for(Allocation("1", 0, "gpu01", ("gpu01",)), answers("")) == LOOPBACK


def test_the_head_is_reached_where_slurm_reaches_the_others() -> None:
    assert head_address_for(three_nodes("gpu01"), answers("NodeName=gpu02 NodeAddr=127.0.0.7 State=IDLE")) == LOOPBACK


def test_a_node_without_an_address_is_named() -> None:
    with pytest.raises(AllocationError, match="gpu02"):
        head_address_for(three_nodes("gpu01"), answers("NodeAddr=256.0.0.1 "))


@pytest.mark.parametrize(
    ("help_text", "can"), [("  --overlap   Force steps to overlap", True), ("  --oversubscribe", False)]
)
def test_overlap_is_looked_up_in_sruns_own_words(help_text: str, can: bool) -> None:
    assert can_overlap(answers(help_text)) is can


def test_the_join_step_is_one_task_on_each_other_node_and_takes_no_gpu_from_the_job() -> None:
    command = join_command(three_nodes("gpu02"), task=["python", "-m", "it"])
    assert command[0] == "srun"
    assert {"--overlap", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--nodelist=gpu01,gpu03"} <= set(command)
    assert not [word for word in command if word.startswith(("--gres", "--gpus"))]
    assert command[-3:] == ["python", "-m", "it"]


def test_the_jobs_own_options_do_not_shape_the_join_step() -> None:
    environ = {
        "SLURM_JOB_ID": "4711",
        "SLURM_GPUS_PER_TASK": "1",
        "SRUN_CPUS_PER_TASK": "4",
        "SLURM_CONF": "/etc/s.conf",
        "PATH": "/bin",
    }
    assert join_environ(environ) == {"SLURM_CONF": "/etc/s.conf", "PATH": "/bin"}


def test_the_service_is_not_profiled_and_uses_its_own_python() -> None:
    environ = {
        "TIDEGAUGE_PROFILE": "trace",
        "PYTHONPATH": "/theirs",
        "PYTHONHOME": "/x",
        "RAY_ADDRESS": "auto",
        "HOME": "/h",
    }
    assert service_environ(environ) == {"HOME": "/h"}
