"""Which job a node's agent takes a process for, on a real Slurm: honest ranks, and those who say they are others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from integration.service import eventually
from integration.slurm.box import CHECKOUT, SERVICE_PYTHON, SlurmBox
from integration.slurm.conftest import StartBox

HERE = Path(__file__).resolve().parent
PROLOG = CHECKOUT / "deploy/slurm/prolog.sh"
TESTS = {"PYTHONPATH": str(CHECKOUT / "tests")}
ALICE, BOB = 5001, 5002
Rank = dict[str, Any]


@contextmanager
def watched(box: SlurmBox) -> Iterator[Callable[[], Any]]:
    """An agent on n1 as root, and its last view."""
    file = box.work / "view.json"
    agent = box.start([SERVICE_PYTHON, HERE / "agent_views.py", file], node="n1", environ=TESTS, log=box.work / "agent")
    try:
        eventually(file.exists, "the agent polls")
        yield lambda: json.loads(file.read_text())
    finally:
        agent.terminate()
        agent.wait(60)


@pytest.fixture(scope="module")
def site(start_box: StartBox) -> SlurmBox:
    """One node with our prolog, and the tracker that knows least: it loses those that leave their process group."""
    return start_box(nodes=1, gpus=2, slurm_conf=f"Prolog={PROLOG}\nProctrackType=proctrack/pgid\n")


@pytest.fixture(scope="module")
def view(site: SlurmBox) -> Iterator[Callable[[], Any]]:
    with watched(site) as look:
        yield look


@pytest.fixture(autouse=True)
def no_jobs_left(site: SlurmBox) -> Iterator[None]:
    """The node has room for the jobs of one test."""
    yield
    site.run("scancel", "--user=alice")
    site.run("scancel", "--user=bob")
    for file in site.work.glob("*.on"):
        file.unlink()


def rank_command(box: SlurmBox, name: str, *options: str) -> str:
    """The command of a rank called ``name``, which lives until the box ends or its file goes."""
    (box.work / f"{name}.on").touch()
    return " ".join([str(SERVICE_PYTHON), str(HERE / "claiming_rank.py"), name, *options])


def submit(box: SlurmBox, script: str, *options: str, user: str = "alice") -> str:
    return box.sbatch(f"export PYTHONPATH={TESTS['PYTHONPATH']}\n{script}", "--nodelist=n1", *options, user=user)


def ranks(look: Callable[[], Any], name: str, count: int = 1, *, in_a_job: bool = True) -> list[Rank]:
    """The ranks of that name as the agent shows them, once there are so many; in the order of their numbers.

    Where slurmd has been silent for long, the agent shows a rank before it knows whether it is in a job.
    """

    def found() -> list[Rank] | None:
        named = [rank for rank in look()["ranks"] if rank["identity"]["job_name"] == name]
        shown = [rank for rank in named if (rank["slurm"] is not None) is in_a_job]
        return sorted(shown, key=lambda rank: rank["identity"]["rank"]) if len(shown) == count else None

    return eventually(found, f"{count} ranks of {name}")


def place(rank: Rank) -> tuple[str, str, str, int]:
    """Job and step by slurmd's word, the job that it is shown as, and its user."""
    assert rank["slurm"]["job_id"] == rank["identity"]["job_id"]
    return rank["slurm"]["job_id"], rank["slurm"]["step_id"], rank["identity"]["scheduler"], rank["uid"]


def test_tasks_of_a_step_are_in_its_job(site: SlurmBox, view: Callable[[], Any]) -> None:
    job = submit(site, f"srun {rank_command(site, 'tasks')}", "--ntasks=2")
    found = ranks(view, "tasks", 2)
    assert [place(rank) for rank in found] == [(job, "0", "slurm", ALICE)] * 2
    assert [rank["identity"]["rank"] for rank in found] == [0, 1]
    assert view()["collect_success"]["slurm"] is True


def test_a_batch_script_is_the_batch_step(site: SlurmBox, view: Callable[[], Any]) -> None:
    job = submit(site, rank_command(site, "batch"))
    assert place(ranks(view, "batch")[0]) == (job, "batch", "slurm", ALICE)


def test_a_task_of_an_array_goes_by_its_own_number(site: SlurmBox, view: Callable[[], Any]) -> None:
    before = view()["claims_overruled"]
    array = submit(site, f"srun {rank_command(site, 'array')}", "--array=4")
    [rank] = ranks(view, "array")
    listed = site.run("squeue", "-h", "-r", "-j", array, "-o", "%A %i").stdout.split()
    assert listed == [rank["slurm"]["job_id"], f"{array}_4"]
    assert view()["claims_overruled"] == before  # it calls itself ARRAY_4, which is no lie


def test_a_process_of_a_new_session_is_in_the_job_of_its_parent(site: SlurmBox, view: Callable[[], Any]) -> None:
    job = submit(site, f"setsid --wait {rank_command(site, 'session')}")
    assert place(ranks(view, "session")[0])[0] == job


def test_a_requeued_job_is_another_attempt_whatever_its_ranks_say(site: SlurmBox, view: Callable[[], Any]) -> None:
    job = submit(site, f"SLURM_RESTART_COUNT=7 srun {rank_command(site, 'again')}", "--requeue")
    [first] = ranks(view, "again")
    site.run("scontrol", "requeue", job)
    eventually(lambda: not [r for r in view()["ranks"] if r["process"] == first["process"]], "the first attempt ended")
    site.start_soon(job)
    [second] = ranks(view, "again")
    assert [rank["identity"]["attempt"] for rank in (first, second)] == [0, 1]
    assert place(first) == place(second) == (job, "0", "slurm", ALICE)
    assert view()["claims_overruled"]["attempt"] == 2


def test_a_process_outside_slurm_is_in_nobodys_job(site: SlurmBox, view: Callable[[], Any]) -> None:
    job = submit(site, f"srun {rank_command(site, 'victim')}")
    assert place(ranks(view, "victim")[0])[0] == job
    forged = {"SLURM_JOB_ID": job, "SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0", **TESTS}
    for user, name in (("bob", "forger"), ("alice", "own-forger")):
        forger = site.start(rank_command(site, name).split(), user=user, node="n1", environ=forged)
        [rank] = ranks(view, name, in_a_job=False)
        (site.work / f"{name}.on").unlink()
        forger.wait(60)
        assert (rank["slurm"], rank["identity"]["scheduler"]) == (None, "local")
        assert rank["identity"]["job_id"].startswith("local-n1-")
    assert view()["claims_overruled"]["job_id"] >= 2


def test_a_rank_in_a_job_is_in_no_other(site: SlurmBox, view: Callable[[], Any]) -> None:
    victim = submit(site, f"srun {rank_command(site, 'target')}")
    ranks(view, "target")
    lies = f"SLURM_JOB_ID={victim} TIDEGAUGE_JOB_ID={victim}"
    job = submit(site, f"srun env {lies} {rank_command(site, 'liar')}", user="bob")
    assert place(ranks(view, "liar")[0]) == (job, "0", "slurm", BOB)


def test_slurm_attribution_loses_a_daemonized_process_without_cgroups(site: SlurmBox, view: Callable[[], Any]) -> None:
    submit(site, f"{rank_command(site, 'lost', '--fork')}\nsleep 600")
    [rank] = ranks(view, "lost", in_a_job=False)
    assert (rank["slurm"], rank["identity"]["scheduler"]) == (None, "local")


def test_slurm_attribution_with_cgroups_keeps_a_daemonized_process(start_box: StartBox) -> None:
    box = start_box(nodes=1, gpus=0, cgroup=True)
    with watched(box) as look:
        job = submit(box, f"{rank_command(box, 'daemon', '--fork')}\nsleep 600")
        assert place(ranks(look, "daemon")[0]) == (job, "batch", "slurm", ALICE)
