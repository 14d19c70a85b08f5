"""``deploy/slurm/prolog.sh`` and ``epilog.sh`` as slurmd runs them, and against users who were there first."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from integration.service import eventually
from integration.slurm.box import CHECKOUT, SlurmBox
from integration.slurm.conftest import StartBox

PROLOG, EPILOG = CHECKOUT / "deploy/slurm/prolog.sh", CHECKOUT / "deploy/slurm/epilog.sh"
RECORDS = "/run/tidegauge/slurm"
TWO_HOURS_S = 7200
DEAD = "4194305-7"
"""A process that cannot be: above the largest pid (PID_MAX_LIMIT, proc(5))."""


@pytest.fixture(scope="module")
def hooked(start_box: StartBox) -> SlurmBox:
    """Two nodes whose slurmd runs both."""
    return start_box(nodes=2, gpus=2, slurm_conf=f"Prolog={PROLOG}\nEpilog={EPILOG}\n")


def call(box: SlurmBox, script: Path, *, job: str = "77", uid: str = "5001", **environ: str) -> None:
    """As slurmd does: as root, with hardly an environment. Every call has to end well."""
    box.run(
        "env", "-i", f"SLURM_JOB_ID={job}", f"SLURM_JOB_UID={uid}", *(f"{k}={v}" for k, v in environ.items()), script,
        node="n1",
    )  # fmt: skip


def noted(box: SlurmBox, job: str, node: str) -> dict[str, str] | None:
    """What the node knows of the job, or ``None``."""
    done = box.run("cat", f"{RECORDS}/{job}", node=node, check=False)
    return dict(line.split("=", 1) for line in done.stdout.splitlines()) if done.returncode == 0 else None


def record(box: SlurmBox, job: str, node: str) -> dict[str, str]:
    return eventually(lambda: noted(box, job, node), f"job {job} is noted on {node}")


def test_each_node_knows_whose_job_it_is_and_its_own_gpus(hooked: SlurmBox) -> None:
    first = hooked.sbatch("sleep 600", "--nodes=1", "--nodelist=n1", "--gpus=1", user="bob")  # GPU 0 of n1
    job = hooked.sbatch("srun sleep 600", "--nodes=2", "--gpus-per-node=1")
    for one in (first, job):
        hooked.wait(one, "RUNNING")
    found = {node: record(hooked, job, node) for node in ("n1", "n2")}
    assert found["n1"] == {
        "JOB_ID": job, "UID": "5001", "RESTART_COUNT": "0", "ARRAY_JOB_ID": "", "ARRAY_TASK_ID": "",
        "PARTITION": "gpu", "ACCOUNT": found["n1"]["ACCOUNT"], "GPUS": "1",
    }  # fmt: skip
    assert found["n2"]["GPUS"] == "0"
    shown = hooked.run("stat", "-c", "%a %U %F", "/run/tidegauge", RECORDS, f"{RECORDS}/{job}", node="n1").stdout
    assert shown.splitlines() == ["1777 root directory", "755 root directory", "644 root regular file"]
    hooked.run("scancel", first, job)
    for one in (first, job):
        hooked.wait(one, "CANCELLED")  # after its epilog, which must not be at work in the tests that follow
    eventually(
        lambda: not any(noted(hooked, job, node) for node in ("n1", "n2")), "the notes are gone"
    )  # fmt: skip


def test_a_requeued_job_is_noted_with_its_restart(hooked: SlurmBox) -> None:
    job = hooked.sbatch("sleep 600", "--nodes=1", "--nodelist=n2", "--requeue")
    hooked.wait(job, "RUNNING")
    hooked.run("scontrol", "requeue", job)
    hooked.wait(job, "PENDING", "RUNNING")  # never its first run: that ends with the command
    hooked.start_soon(job)
    hooked.wait(job, "RUNNING")
    assert record(hooked, job, "n2")["RESTART_COUNT"] == "1"
    hooked.run("scancel", job)


@pytest.mark.parametrize("trap", ["mkdir -p {0}", "ln -s /etc {0}", "touch {0}", "mkfifo {0}"])
def test_prolog_replaces_a_record_path_made_by_a_user(hooked: SlurmBox, trap: str) -> None:
    hooked.run("rm", "-rf", RECORDS, node="n1")
    hooked.run("sh", "-c", trap.format(RECORDS), user="alice", node="n1")
    call(hooked, PROLOG)
    assert record(hooked, "77", "n1")["UID"] == "5001"
    assert hooked.run("stat", "-c", "%U %F", RECORDS, node="n1").stdout == "root directory\n"
    assert hooked.run("test", "-e", "/etc/77", node="n1", check=False).returncode == 1


def test_the_epilog_removes_nothing_through_a_users_link(hooked: SlurmBox) -> None:
    hooked.run("rm", "-rf", RECORDS, node="n1")
    hooked.run("touch", "/etc/77", node="n1")
    hooked.run("ln", "-s", "/etc", RECORDS, user="alice", node="n1")
    call(hooked, EPILOG)
    hooked.run("rm", "/etc/77", RECORDS, node="n1")


def test_strange_values_are_unknown_and_make_no_lines_of_their_own(hooked: SlurmBox) -> None:
    call(
        hooked, PROLOG, SLURM_JOB_PARTITION="gpu\nUID=0", SLURM_JOB_GPUS="0;1", SLURM_JOB_RESTART_COUNT="-1",
        SLURM_JOB_ACCOUNT="physics", SLURM_ARRAY_JOB_ID="70", SLURM_ARRAY_TASK_ID="4294967294",
    )  # fmt: skip
    assert record(hooked, "77", "n1") == {
        "JOB_ID": "77", "UID": "5001", "RESTART_COUNT": "", "ARRAY_JOB_ID": "70", "ARRAY_TASK_ID": "",
        "PARTITION": "", "ACCOUNT": "physics", "GPUS": "",
    }  # fmt: skip


def test_a_full_run_directory_fails_no_job(hooked: SlurmBox) -> None:
    hooked.run("mount", "-t", "tmpfs", "-o", "ro", "none", "/run/tidegauge", node="n1")
    try:
        call(hooked, PROLOG)
        call(hooked, EPILOG)
    finally:
        hooked.run("umount", "/run/tidegauge", node="n1")


@pytest.mark.parametrize("script", [PROLOG, EPILOG])
@pytest.mark.parametrize("job", ["", "../../etc/passwd", "7 8"])
def test_without_a_job_nothing_is_done_and_nothing_fails(hooked: SlurmBox, script: Path, job: str) -> None:
    before = hooked.run("find", "/run/tidegauge", "/etc", node="n1").stdout
    call(hooked, script, job=job)
    assert hooked.run("find", "/run/tidegauge", "/etc", node="n1").stdout == before


@pytest.mark.parametrize("run_dir", ["/run/tidegauge", "/dev/shm/tidegauge"])
def test_the_epilog_removes_what_dead_processes_left_long_ago(hooked: SlurmBox, run_dir: str) -> None:
    folder = f"{run_dir}/5001"
    hooked.run("rm", "-rf", folder, node="n1")
    hooked.run("install", "-d", "-m", "1777", run_dir, node="n1")
    hooked.run("install", "-d", "-m", "700", "-o", "alice", folder, node="n1")
    sleeper = hooked.start(["sleep", "600"], user="alice", node="n1")
    start_ticks = Path(f"/proc/{hooked.pid_of(sleeper)}/stat").read_text().rsplit(") ", 1)[1].split()[19]
    find = ("pgrep", "-u", "alice", "-f", "^sleep 600$")
    # Until it is itself, it is a command that enters the node.
    pid = eventually(lambda: hooked.run(*find, node="n1", check=False).stdout.split(), "alice sleeps")[-1]
    alive = f"{pid}-{start_ticks}"
    old = [
        f"{DEAD}.ring",
        f"{DEAD}.sock",
        f"{DEAD}.job",
        f"{alive}.ring",
        "4194305-8.sock",
        f"{DEAD}.txt",
        "4194305-9.ring",
    ]
    make(hooked, folder, old, age_s=TWO_HOURS_S)
    make(hooked, folder, ["4194305-8.ring"], age_s=0)  # its probe, in a container, touches it
    hooked.run("chown", "bob", f"{folder}/4194305-9.ring", node="n1")
    call(hooked, EPILOG)
    left = hooked.run("ls", folder, node="n1").stdout.split()
    assert left == sorted([f"{alive}.ring", "4194305-8.sock", "4194305-8.ring", f"{DEAD}.txt", "4194305-9.ring"])
    sleeper.terminate()
    sleeper.wait()


def make(box: SlurmBox, folder: str, names: list[str], *, age_s: float) -> None:
    when = f"@{time.time() - age_s:.0f}"
    box.run("touch", "-d", when, *(f"{folder}/{name}" for name in names), user="alice", node="n1")


def test_the_sweep_has_the_users_rights_alone(hooked: SlurmBox) -> None:
    """Alice makes her folder a link to bob's: what is old there stays."""
    hooked.run("install", "-d", "-m", "700", "-o", "bob", "/run/tidegauge/5002", node="n1")
    hooked.run(
        "touch", "-d", f"@{time.time() - TWO_HOURS_S:.0f}", f"/run/tidegauge/5002/{DEAD}.ring", user="bob", node="n1"
    )
    hooked.run("rm", "-rf", "/run/tidegauge/5001", node="n1")
    hooked.run("ln", "-s", "/run/tidegauge/5002", "/run/tidegauge/5001", user="alice", node="n1")
    call(hooked, EPILOG)
    assert hooked.run("ls", "/run/tidegauge/5002", node="n1").stdout.split() == [f"{DEAD}.ring"]


def test_both_are_executable() -> None:
    assert all(os.access(script, os.X_OK) for script in (PROLOG, EPILOG))
