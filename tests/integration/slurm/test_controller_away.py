"""A job in the closed loop whose controller goes away; and the memory fraction that Slurm hands on."""

from __future__ import annotations

import re
import shlex
import time

import pytest

from fakegpu.rig import Rig
from integration.closed_loop_site import POLICY
from integration.service import eventually
from integration.slurm.site import MAY_REQUEUE, ON_ITS_NODE, STEPS, Site
from matrix import turn

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]

NO_REQUEUE = POLICY.format(mode="act").replace("      - {action: requeue}\n", "")
AWAY_S = 60
"""slurmctld in the middle of a requeue: longer than it may be silent before its answers count as old."""


@turn(1)
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
    eventually(lambda: site.restarts(leaky) == requeues().count("done"), "as often as it was decided")
    site.box.run("scancel", leaky.job_id, user="bob")


@turn(2)
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
