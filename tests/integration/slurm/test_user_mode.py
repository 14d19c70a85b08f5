"""``tidegauge run --with-service``: a user watches an allocation without any admin, on a real Slurm and a real Ray."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from integration.service import eventually
from integration.slurm.box import CHECKOUT, SERVICE_PYTHON, SlurmBox
from integration.slurm.conftest import StartBox

pytestmark = pytest.mark.timeout(600)

RANK = CHECKOUT / "tests/integration/slurm/ring_rank.py"
TIDEGAUGE = SERVICE_PYTHON.with_name("tidegauge")
MIB = 1 << 20


@pytest.fixture(scope="module")
def small_box(start_box: StartBox) -> SlurmBox:
    box = start_box(nodes=2, gpus=1, slurm_conf="KillWait=30\n")  # as sites have it
    for node in ("n1", "n2"):  # no admin has been here
        box.run("rmdir", "/run/tidegauge", node=node)
    return box


def submit(box: SlurmBox, go_file: Path, *options: str, command: str = "") -> str:
    # In 3,000 steps nearly all of a card of 80 GiB, which is assumed where none is known: dangerous.
    rank = f"{SERVICE_PYTHON} {RANK} {go_file} {24 * MIB}"
    script = f"""
        export PYTHONPATH={CHECKOUT / "tests"}
        {TIDEGAUGE} run --with-service -- {command or f"srun {rank}"}
        echo "exit status $?"
    """
    return box.sbatch(script, "--mem=1500", *options)


def look_from_the_login_node(box: SlurmBox, job: str) -> Callable[[], dict[str, Any] | None]:
    """What the command that the job prints answers there, once it has printed one."""

    def look() -> dict[str, Any] | None:
        said = re.search(r"show it with: (srun .*) tidegauge (jobs .*)", box.output(job))
        if said is None:
            return None
        command = [*shlex.split(said[1]), str(TIDEGAUGE), *shlex.split(said[2]), "--json"]
        answer = box.run(*command, user="alice", check=False, timeout_s=60)
        return json.loads(answer.stdout) if answer.returncode == 0 else None

    return look


def leftovers(box: SlurmBox, node: str) -> str:
    """Files and processes of a service of alice's on a node."""
    # Files may go while it looks.
    find = ("find", "/tmp", "/dev/shm", "-ignore_readdir_race", "-maxdepth", "1", "-user", "alice")
    processes = box.run("ps", "-u", "alice", "-o", "stat=,pid=,args=", node=node, check=False).stdout
    # What has ended and was not taken in yet by the node's first process is nothing that a service leaves.
    living = [line for line in processes.splitlines() if not line.startswith("Z")]
    return box.run(*find, node=node).stdout + "\n".join(living)


def test_ranks_of_all_nodes_are_seen_and_the_results_stay(small_box: SlurmBox) -> None:
    go_file = small_box.work / "go"
    job = submit(small_box, go_file, "--nodes=2", "--ntasks-per-node=1", "--gpus-per-task=1")
    results = small_box.work / f"tidegauge-{job}"
    look = look_from_the_login_node(small_box, job)

    def two_hosts() -> list[dict[str, Any]] | None:
        answer = look()
        job = answer["jobs"][0] if answer and answer["jobs"] else {"ranks": [], "suspects": []}
        ranks: list[dict[str, Any]] = job["ranks"]
        seen = {rank["identity"]["hostname"] for rank in ranks} == {"n1", "n2"} and job["suspects"] == [1]
        return ranks if seen else None

    try:
        ranks = eventually(two_hosts, "ranks on both nodes", within_s=180)
        eventually(lambda: list(results.glob("incident-*.html")), "there is an incident", within_s=180)
    except AssertionError:
        print(small_box.output(job), *(p.read_text()[-3000:] for p in small_box.work.glob("tidegauge-*/logs/**/*.log")))
        raise
    assert sorted(rank["identity"]["rank"] for rank in ranks) == [0, 1]
    go_file.touch()
    small_box.wait(job, "COMPLETED", within_s=180)
    assert "exit status 0" in small_box.output(job)

    (kept,) = json.loads((results / "jobs.json").read_text())["jobs"]
    assert (kept["job_id"], kept["user_name"], kept["suspects"], kept["running"]) == (job, "alice", [1], False)
    (incident,) = json.loads((results / "incidents.json").read_text())["incidents"]
    assert incident["last_decision"] is None or incident["last_decision"]["decision"]["mode"] == "observe"
    assert "rank 1" in (results / f"incident-{incident['number']}.html").read_text()
    assert job in (results / "summary.txt").read_text()
    assert (results / "logs/n1/coordinator.log").exists()
    assert (results / "logs/n2/agent.log").exists()
    assert [leftovers(small_box, node) for node in ("n1", "n2")] == ["", ""]


def test_the_commands_exit_status_is_the_jobs(small_box: SlurmBox) -> None:
    job = submit(small_box, small_box.work / "unused", "--nodes=1", command="bash -c 'exit 7'")
    small_box.wait(job, "COMPLETED", within_s=180)
    assert "exit status 7" in small_box.output(job)
    assert (small_box.work / f"tidegauge-{job}/jobs.json").exists()


def test_a_cancelled_job_keeps_its_results_and_leaves_nothing(small_box: SlurmBox) -> None:
    job = submit(small_box, small_box.work / "never", "--nodes=2", "--ntasks-per-node=1")
    results = small_box.work / f"tidegauge-{job}"
    eventually(lambda: list(results.glob("incident-*.html")), "the first results are kept", within_s=180)
    small_box.run("scancel", job, user="alice")
    eventually(lambda: not any(leftovers(small_box, node) for node in ("n1", "n2")), "nothing is left", within_s=180)
    assert json.loads((results / "jobs.json").read_text())["jobs"][0]["suspects"] == [1]


@pytest.mark.parametrize("level", ["", "--memory-profile=off"])
def test_outside_of_an_allocation_it_says_what_to_do(small_box: SlurmBox, level: str) -> None:
    flags = [level] if level else []
    done = small_box.run(TIDEGAUGE, "run", *flags, "--with-service", "--", "true", user="alice", check=False)
    assert done.returncode == 2
    assert ("not inside a Slurm allocation" if not level else "--with-service cannot be combined") in done.stderr


def test_each_task_of_a_step_cannot_start_a_service(small_box: SlurmBox) -> None:
    done = small_box.run(
        "srun", "--ntasks=2", TIDEGAUGE, "run", "--with-service", "--", "true", user="alice", check=False
    )  # fmt: skip
    assert done.returncode == 2
    assert "put it around srun" in done.stderr
