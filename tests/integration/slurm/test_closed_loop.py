"""The closed loop on a real Slurm: ``sbatch --memory-profile``, a leak, a checkpoint, a requeue, and on to the end."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from exposition_text import parse_text
from fakegpu.rig import Rig
from integration.closed_loop_site import LADDER, POLICY, done, to_the_requeue
from integration.service import eventually
from integration.slurm.conftest import StartBox
from integration.slurm.site import HOOKS, ON_ITS_NODE, SLURM_CONF, Job, Site

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

STEPS = 600
"""More than half a minute: what is not to be done to a job would have been by then."""
CAP = "0.5"
"""Of 80 GiB: 40 GiB, which a rank that leaks 4 MiB a step reaches before step 10,250: minutes."""
MAY_REQUEUE = ("--memory-profile=stats", f"--memory-fraction={CAP}", "--comment=tidegauge:requeue")
NO_REQUEUE = POLICY.format(mode="act").replace("      - {action: requeue}\n", "")
AWAY_S = 60
"""slurmctld in the middle of a requeue: longer than it may be silent before its answers count as old."""


@pytest.fixture(scope="module")
def site(start_box: StartBox, rig: Rig) -> Iterator[Site]:
    box = start_box(nodes=3, gpus=2, memory_mib=8000, accounting=True, files=HOOKS, slurm_conf=SLURM_CONF)
    box.make_operator("tidegauge")
    folder = box.folder / "s"
    folder.mkdir(mode=0o755)
    one = Site(box, rig, folder)
    one.set_mode("act")
    try:
        one.up(nodes=["n1", "n2", "n3"])
        yield one
    finally:
        print(one.story())  # shown with a failure
        one.close()


def test_leaking_job_is_saved_requeued_and_completes_and_nobody_else_is_touched(site: Site) -> None:
    site.set_mode("observe")  # so that the first attempt lasts until it was seen
    healthy = site.submit(
        "healthy", options=("--memory-profile=stats", "--comment=tidegauge:requeue", "--nodelist=n3"),
        nodes=1, ranks_per_node=1, steps=STEPS, user="alice",
    )  # fmt: skip
    leaky = site.submit(
        "leaky", "--leak-rank", "1", options=(*MAY_REQUEUE, "--nodelist=n1,n2"),
        nodes=2, ranks_per_node=2, steps=STEPS, user="alice",
    )  # fmt: skip
    # Bob's job leaks, asks to be left alone, and says that it is Alice's healthy one.
    kept = site.submit(
        "kept", "--leak-rank", "0",
        options=(*MAY_REQUEUE[:2], "--comment=the night run; tidegauge:keep", "--nodelist=n3"),
        nodes=1, ranks_per_node=1, steps=STEPS, user="bob", environ={"TIDEGAUGE_JOB_ID": healthy.job_id},
    )  # fmt: skip

    ranks = eventually(lambda: _ranks(site, leaky, living=4), "four ranks", within_s=150)
    assert [rank["identity"]["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert {rank["user_name"] for rank in ranks} == {"alice"}
    assert {(rank["slurm"]["job_id"], rank["slurm"]["step_id"]) for rank in ranks} == {(leaky.job_id, "0")}
    assert {rank["identity"]["attempt"] for rank in ranks} == {0}
    assert {rank["identity"]["hostname"] for rank in ranks} == {"n1", "n2"}
    assert len({rank["uuid"] for rank in ranks}) == 4
    told = {"scheduler": "slurm", "slurm_partition": "gpu"}
    eventually(lambda: told.items() <= _info(site, "leaky").items(), "what Slurm says of it")
    site.set_mode("act")
    eventually(lambda: leaky.told("saved"), "a checkpoint", within_s=180)
    # The second one, or if that was over before it was seen, one after it.
    ranks = eventually(lambda: _ranks(site, leaky, living=4, again=True), "another attempt", within_s=240)
    (attempt,) = {rank["identity"]["attempt"] for rank in ranks}
    eventually(lambda: attempt in [one["attempt"] for one in leaky.told("began")], "its own word for that")
    eventually(lambda: done(site.decisions(kept.job_id)), "Bob is told", within_s=150)

    jobs = (leaky, kept, healthy)
    for job in jobs:
        job.let_end()  # all of them: they must not run out of memory while one is waited for
    for job in jobs:
        site.box.wait(job.job_id, "COMPLETED", within_s=480)
    first, *rest = leaky.told("began")
    assert first["step"] == 0
    saved = [one["step"] for one in leaky.told("saved")]
    # Each goes on from what was saved; the job may have come to its end before the requeue behind its last checkpoint.
    assert rest
    assert [start["step"] for start in rest] in (saved, saved[:-1])
    assert leaky.told("finished")[0]["step"] >= STEPS
    assert _restarts(site, leaky) == len(rest)

    # The audit tells it step by step, and names the rank.
    (first_incident, *_) = sorted(site.incidents(leaky.job_id), key=lambda one: int(one["number"]))
    assert [finding["rank"] for finding in first_incident["findings"]] == [1]
    assert to_the_requeue(done(site.decisions(leaky.job_id)))[-4:] == LADDER
    number = str(first_incident["number"])
    page = eventually(lambda: site.call("incidents", "show", number, check=False).stdout, "the incident's page")
    for part in ("rank 1", "alice", "checkpoint", "requeue", "rule leak"):
        assert part in page

    # Bob's job was seen, as his; it was told of, and not touched. Nothing was held against Alice's healthy one.
    (incident, *_) = site.incidents(kept.job_id)
    assert incident["key"]["job"]["uid"] == site.box.users["bob"]
    assert {*done(site.decisions(kept.job_id))} == {"notify"}
    assert [line["what"] for line in kept.story()] == ["began", "finished"]
    assert [line["what"] for line in healthy.story()] == ["began", "finished"]
    assert site.incidents(healthy.job_id) == []
    assert 'tidegauge_actions_total{action="requeue",cluster="slurm-test",outcome="done"}' in site.metrics()


def test_memory_fraction_is_in_force_in_the_ranks_and_a_bad_one_is_refused(site: Site) -> None:
    command = [str(Rig().python), "-c", FRACTION_IN_FORCE]
    script = "\n".join(["#!/bin/bash", *site.exports(), f"srun {shlex.join(ON_ITS_NODE)} {shlex.join(command)}", ""])
    output = site.box.work / "fraction.log"
    job = site.box.sbatch(
        script, "--memory-fraction=0.5", "--nodes=2", "--ntasks=2", "--gres=gpu:1", f"--output={output}", user="alice"
    )  # fmt: skip
    site.box.wait(job, "COMPLETED", within_s=90)
    assert sorted(re.findall(r"in force: .*", output.read_text())) == ["in force: 39 GiB yes, 41 GiB no"] * 2

    with pytest.raises(AssertionError, match=r"--memory-fraction: '1\.5' is not .*above 0 and at most 1"):
        site.box.sbatch("srun true", "--memory-fraction=1.5", user="alice")


FRACTION_IN_FORCE = """
import torch
def fits(gib):
    try:
        torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        return "no"
    finally:
        torch.cuda.empty_cache()
    return "yes"
print("in force: 39 GiB %s, 41 GiB %s" % (fits(39), fits(41)))
"""


def test_controller_that_is_away_for_a_minute_in_the_middle_costs_nothing(site: Site) -> None:
    site.set_policy(NO_REQUEUE)
    leaky = site.submit(
        "interrupted", "--leak-rank", "1", options=(*MAY_REQUEUE, "--nodelist=n1,n2"),
        nodes=2, ranks_per_node=2, steps=STEPS, user="bob",
    )  # fmt: skip
    eventually(lambda: leaky.told("saved"), "a checkpoint", within_s=180)
    site.box.stop_controller()
    try:
        site.set_mode("act")  # not before nobody is there to requeue it
        time.sleep(AWAY_S)  # what the test is about
        assert len(leaky.told("began")) == 1, "nothing can be requeued while nobody is there to do it"
    finally:
        site.box.start_controller()
    eventually(lambda: len(leaky.told("began")) > 1, "the second attempt", within_s=240)
    assert leaky.told("began")[1]["step"] == leaky.told("saved")[0]["step"]

    def requeues() -> list[str | None]:
        found = [one for one in site.decisions(leaky.job_id) if one["decision"]["action"] == "requeue"]
        return [one["outcome"] for one in found if one["decision"]["disposition"] == "do"]

    # The job may begin again before the service has looked what came of the command that it could not hear about. The
    # second attempt leaks too.
    eventually(lambda: requeues()[:1] == ["done"], "the requeue is known to be done", within_s=90)
    eventually(lambda: _restarts(site, leaky) == requeues().count("done"), "as often as it was decided")
    site.box.run("scancel", leaky.job_id, user="bob")


def _info(site: Site, job_name: str) -> Mapping[str, str]:
    """The labels of ``tidegauge_job_info`` of a job in its first attempt."""
    samples = [sample for family in parse_text(site.metrics()) for sample in family.samples]
    found = [sample.labels for sample in samples if sample.name == "tidegauge_job_info"]
    return next((one for one in found if (one["job_name"], one["attempt"]) == (job_name, "0")), {})


def _ranks(site: Site, job: Job, *, living: int, again: bool = False) -> list[dict[str, Any]] | None:
    """The ranks of the first attempt, or ``again``: of a later one, once so many of them live; ``None`` before that."""
    for view in site.jobs():
        ranks = [rank for rank in view["ranks"] if rank["alive"]]
        whole = all(rank["slurm"] and rank["uuid"] for rank in ranks)  # slurmd or the driver may not have said it yet
        if whole and (view["job_id"], view["attempt"] > 0, len(ranks)) == (job.job_id, again, living):
            return sorted(ranks, key=lambda rank: int(rank["identity"]["rank"]))
    return None


def _restarts(site: Site, job: Job) -> int:
    shown = site.box.run("scontrol", "show", "job", job.job_id).stdout
    return int(re.findall(r"Restarts=(\d+)", shown)[0])
