"""The closed loop on a real Slurm: ``sbatch --memory-profile``, a leak, a checkpoint, a requeue, and on to the end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from exposition_text import parse_text
from integration.closed_loop_site import LADDER, done, to_the_requeue
from integration.service import eventually
from integration.slurm.site import MAY_REQUEUE, STEPS, Job, Site
from matrix import turn

pytestmark = [pytest.mark.rig, pytest.mark.timeout(1200)]


@turn(5)
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
    # Of a job that has ended a coordinator that looks late cannot tell whether it was started again.
    eventually(lambda: "requeue" in done(site.decisions(leaky.job_id)), "the requeue is written down")
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
    assert site.restarts(leaky) == len(rest)

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


@turn(0)
def test_of_two_steps_side_by_side_both_are_saved_and_both_go_on(site: Site) -> None:
    """Two ``srun`` in one allocation; one leaks. The requeue ends both."""
    site.set_mode("act")
    leaky, healthy = site.submit_two_steps(
        "pair", ("--leak-rank", "0"), (), options=(*MAY_REQUEUE, "--nodelist=n1"), steps=STEPS, user="alice"
    )
    eventually(lambda: _groups(site, leaky) == {"step 0", "step 1"}, "two groups of ranks", within_s=150)
    for job in (leaky, healthy):
        eventually(partial(_is_in_another_attempt, job), "its second attempt", within_s=420)
    leaky.let_end()
    site.box.wait(leaky.job_id, "COMPLETED", within_s=480)
    for job in (leaky, healthy):
        first, *rest = job.told("began")
        saved = [one["step"] for one in job.told("saved")]
        assert first["step"] == 0
        assert [start["step"] for start in rest] in (saved, saved[:-1]), "each goes on from what it saved"
        assert job.told("finished")[0]["step"] >= STEPS
    assert {incident["group_name"] for incident in site.incidents(leaky.job_id)} <= {"step 0", "step 1"}
    (leaks,) = {incident["group_name"] for incident in site.incidents(leaky.job_id)[-1:]}
    proofs = [one["detail"] for one in site.decisions(leaky.job_id) if _is_done(one, "checkpoint")]
    assert "step 0: 1 of 1 rank saved" in proofs[0]
    assert "step 1: 1 of 1 rank saved" in proofs[0]
    page = site.call("jobs", check=False).stdout
    assert leaks in page or leaky.job_id not in page


def test_with_a_step_that_cannot_be_asked_nothing_is_ended_and_the_owner_is_told(site: Site) -> None:
    site.set_mode("act")
    leaky, healthy = site.submit_two_steps(
        "half", ("--leak-rank", "0"), ("--no-callback",), options=(*MAY_REQUEUE, "--nodelist=n1"), steps=1, user="alice"
    )
    why = "cannot checkpoint on request: give it tidegauge.on_checkpoint_request(fn), or TIDEGAUGE_CHECKPOINT=none"
    eventually(lambda: leaky.log.exists() and why in leaky.log.read_text(), "the owner is told why", within_s=240)
    eventually(lambda: done(site.decisions(leaky.job_id)), "the outcome is written down")
    leaky.let_end()
    site.box.wait(leaky.job_id, "COMPLETED", within_s=240)
    assert {*done(site.decisions(leaky.job_id))} == {"notify"}
    for job in (leaky, healthy):
        assert [line["what"] for line in job.story()] == ["began", "finished"]
    assert site.restarts(leaky) == 0


def _is_in_another_attempt(job: Job) -> bool:
    return len(job.told("began")) > 1


def _groups(site: Site, job: Job) -> set[str]:
    return {view["group_name"] for view in site.jobs() if view["job_id"] == job.job_id and view["running"]}


def _is_done(record: Mapping[str, Any], action: str) -> bool:
    return (record["outcome"], record["decision"]["action"]) == ("done", action)


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
