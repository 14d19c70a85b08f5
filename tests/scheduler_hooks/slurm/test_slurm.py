"""The Slurm adapter against a model of slurmctld: the contract of every scheduler, and what can go wrong."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from scheduler_hooks.port_contract import ContractWorld, PortContract, act, stop
from scheduler_hooks.slurm.fake_slurm import (
    AWAY,
    STARTED_S,
    UID,
    UNKNOWN_TO_SQUEUE,
    FakeJob,
    says,
)
from scheduler_hooks.slurm.slurm_world import UNCHANGED, SlurmWorld, slurm_view
from tidegauge.core.ids import JobId
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.slurm import SlurmPlace
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import (
    PermanentError,
    RequeueChanges,
    TemporaryError,
)
from tidegauge_scheduler_hooks.slurm.commands import Finished

CHANGES = RequeueChanges(alloc_conf={"expandable_segments": "True"}, environ={"TIDEGAUGE_MEMORY_FRACTION": "0.8"})
STOPS = (ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL)


@pytest.fixture
def world() -> SlurmWorld:
    return SlurmWorld()


class TestSlurm(PortContract):
    """The adapter on the model."""

    @pytest.fixture
    def world(self) -> ContractWorld:
        return SlurmWorld()


# Which jobs are whose


def test_all_jobs_are_described_by_one_command(world: SlurmWorld) -> None:
    jobs = [world.start_job() for _ in range(20)]
    assert len(world.port.describe(jobs)) == 20
    assert [call[0] for call in world.slurm.calls] == ["squeue"]


def test_slurm_adapter_ignores_ranks_of_another_user(world: SlurmWorld) -> None:
    job = world.start_job()
    thief = replace(job, ranks=(replace(job.ranks[0], uid=UID + 1),))
    assert world.facts(thief) is None


@pytest.mark.parametrize(
    "place", [None, SlurmPlace(JobId("41"), "0")], ids=["no slurmd says so", "slurmd says another job"]
)
def test_a_job_by_the_ranks_own_word_is_none(world: SlurmWorld, place: SlurmPlace | None) -> None:
    view = slurm_view(world.slurm.add(FakeJob(40)), slurm=place)
    assert world.facts(view) is None
    assert world.slurm.calls == [], "and slurmctld is not asked for nothing"


def test_the_word_about_a_rank_that_has_ended_does_not_count(world: SlurmWorld) -> None:
    job = world.start_job()
    dead = replace(job.ranks[0], alive=False)
    claimed = replace(job.ranks[0], slurm=None)
    assert world.facts(replace(job, ranks=(claimed, dead))) is None


def test_slurm_adapter_needs_a_single_attributed_rank(world: SlurmWorld) -> None:
    job = world.start_job()
    fresh = replace(job.ranks[0], slurm=None)
    assert world.facts(replace(job, ranks=(fresh, job.ranks[0]))) is not None


def test_ranks_of_a_run_that_was_replaced_are_not_taken_for_the_next_one(world: SlurmWorld) -> None:
    job = world.start_job()
    late = replace(job.ranks[0], identity=job.ranks[0].identity._replace(attempt=2, attempts_each=4))
    world.job(job).restarts = 1
    assert world.facts(job) is None
    assert world.facts(replace(job, attempt=2, ranks=(late,))) is None, "torchelastic's restarts are not Slurm's"
    assert world.facts(replace(job, attempt=4, ranks=(late,))) is not None


# What is said of a job


def test_consent_is_the_owners_own_word(world: SlurmWorld) -> None:
    for comment, requeueable, exempt in (
        ("", False, False), ("requeue", False, False), ("x tidegauge:requeue, y", True, False),
        ("tidegauge:keep tidegauge:requeue", True, True), ("[tidegauge says: requeue]", False, False),
    ):  # fmt: skip
        facts = world.facts(world.start_job(comment=comment))
        assert facts is not None
        assert (facts.requeueable, facts.exempt) == (requeueable, exempt), comment


def test_a_site_may_have_all_jobs_requeued_that_slurm_would(world: SlurmWorld) -> None:
    world.port = world.another_port(requeue_unasked=True)
    facts = [world.facts(world.start_job(comment="", may_requeue=may)) for may in (True, False)]
    assert [one is not None and one.requeueable for one in facts] == [True, False]
    job = world.start_job(comment="")
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.job(job).restarts == 1


@pytest.mark.parametrize(
    "kind", [{"batch": False}, {"may_requeue": False}], ids=["srun or salloc", "--no-requeue"]
)  # fmt: skip
def test_slurm_adapter_only_cancels_a_job_that_slurm_cannot_restart(world: SlurmWorld, kind: dict[str, bool]) -> None:
    job = world.start_job(**kind)
    facts, target = world.facts(job), world.target(job)
    assert facts is not None
    assert facts.can & set(STOPS) == {ActionKind.CANCEL}
    assert not facts.requeueable
    for action in (ActionKind.REQUEUE, ActionKind.HOLD):
        with pytest.raises(PermanentError, match=r"sbatch|--no-requeue"):
            stop(world.port, action, target, "d")
    assert world.slurm.acts() == []
    world.port.cancel(target, "leaks", decision_id="d")
    assert world.slurm.acts() == [("scancel", job.job_id)]


def test_the_parts_of_a_heterogeneous_job_are_never_ended(world: SlurmWorld) -> None:
    job = world.start_job(het_job_id=40)
    facts, target = world.facts(job), world.target(job)
    assert facts is not None
    assert facts.can == {ActionKind.NOTIFY, ActionKind.CAP, ActionKind.CHECKPOINT}
    for action in STOPS:
        with pytest.raises(PermanentError, match="heterogeneous"):
            stop(world.port, action, target, "d")
    assert world.slurm.acts() == []


def test_a_task_is_told_by_its_arrays_name(world: SlurmWorld) -> None:
    task, job = world.facts(world.start_job(array=(40, 3))), world.facts(world.start_job())
    assert task is not None
    assert job is not None
    assert (task.array_name, job.array_name) == ("40_3", None)


def test_commands_name_the_task_of_an_array_and_never_its_number(world: SlurmWorld) -> None:
    """The last task of an array has the array's number: ``scancel 40`` would end all of them."""
    for action, verb in zip(STOPS, ("requeue", "requeuehold", "scancel")):
        job = world.start_job(array=(40, len(world.slurm.known)))
        stop(world.port, action, world.target(job), "d")
        call = world.slurm.acts()[-1]
        assert verb in call
        assert call[-1] == world.job(job).name
        assert "_" in call[-1]


def test_an_array_whose_task_is_not_known_is_not_acted_on(world: SlurmWorld) -> None:
    job = world.start_job(array=(40, 3))
    target = world.target(job)
    world.job(job).array = None  # what is said of it does not tell its task
    entry = replace(target, handle={})
    world.slurm.before = lambda call: (
        Finished(0, f"40|6-900%1|{UID}|RUNNING|0|{STARTED_S}|1|1|1|N/A|tidegauge:requeue|\n".encode(), b"")
        if "-O" in call else None
    )  # fmt: skip
    for action in STOPS:
        with pytest.raises(PermanentError, match="the task is unknown"):
            stop(world.port, action, entry, "d")
    assert world.slurm.acts() == []


def test_the_share_of_a_gpu_is_told_beside_what_the_nodes_have(world: SlurmWorld) -> None:
    job = world.start_job(gres=("shard:fake:2(IDX:1)",))
    for _ in range(3):
        facts = world.facts(job)
        assert facts is not None
        assert facts.gpu_share == 0.5
    assert [call[0] for call in world.slurm.calls].count("sinfo") == 1


def test_a_share_that_cannot_be_told_takes_no_facts_away(world: SlurmWorld, caplog: pytest.LogCaptureFixture) -> None:
    job = world.start_job(gres=("shard:fake:2(IDX:1)",))
    world.slurm.before = lambda call: says(AWAY) if call[0] == "sinfo" else None
    with caplog.at_level(logging.WARNING):
        facts = world.facts(job)
    assert facts is not None
    assert facts.gpu_share is None
    assert "GPU shares unknown" in caplog.text


# The owner's last word


@pytest.mark.parametrize("action", [action for action in ActionKind if action.is_acting])
def test_a_job_whose_owner_says_keep_meanwhile_is_left_alone(world: SlurmWorld, action: ActionKind) -> None:
    job = world.start_job(saves=True)
    target = world.target(job)
    world.job(job).comment = "tidegauge:requeue tidegauge:keep"
    with pytest.raises(PermanentError, match="job 40: no action allowed: its comment says tidegauge:keep"):
        act(world.port, action, target, "d")
    assert world.slurm.acts() == []
    assert world.saves(job) == 0


def test_the_owner_of_a_job_that_is_left_alone_is_told_all_the_same(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.job(job).comment = "tidegauge:keep"
    world.port.notify(target, "rank 3 leaks", decision_id="d-1")
    world.port.annotate(target, "rank 3 leaks", decision_id="d-2")
    assert world.owner_sees(job).count("rank 3 leaks") == 2
    assert "tidegauge:keep" in world.job(job).comment


def test_consent_that_was_taken_back_counts(world: SlurmWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.job(job).comment = "on second thoughts, no"
    with pytest.raises(PermanentError, match="may not be requeued"):
        world.port.requeue(target, CHANGES, "leaks", decision_id="d")
    assert world.slurm.acts() == []
    assert world.settings.puts == []


# How jobs ended


def ended(view: JobView) -> JobView:
    return replace(view, running=False, ranks=(replace(view.ranks[0], alive=False),))


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"state": "COMPLETED"}, JobEnd.COMPLETED),
        ({"state": "FAILED"}, JobEnd.FAILED),
        ({"state": "TIMEOUT"}, JobEnd.FAILED),
        ({"state": "NODE_FAIL"}, JobEnd.FAILED),
        ({"state": "OUT_OF_MEMORY"}, JobEnd.FAILED),
        ({"state": "CANCELLED"}, JobEnd.CANCELLED),
        ({"state": "PREEMPTED"}, JobEnd.PREEMPTED),
        ({"state": "PENDING", "restarts": 1}, JobEnd.REQUEUED),
        ({"state": "RUNNING", "restarts": 1}, JobEnd.REQUEUED),
        ({"state": "PENDING", "restarts": 1, "held": True}, JobEnd.CANCELLED),
        ({"state": "RUNNING"}, None),
        ({"state": "COMPLETING"}, None),
        ({"state": "A_NEW_ONE"}, None),
        ({"uid": UID + 1, "state": "COMPLETED"}, None),
    ],
)
def test_slurm_tells_how_a_run_ended(world: SlurmWorld, changes: dict[str, Any], end: JobEnd | None) -> None:
    view = ended(world.start_job())
    for name, value in changes.items():
        setattr(world.job(view), name, value)
    assert world.port.ends([view]).get(view.key) is end


def test_all_ended_jobs_are_one_question_and_jobs_elsewhere_none(world: SlurmWorld) -> None:
    jobs = [ended(world.start_job(state="COMPLETED")) for _ in range(20)]
    assert len(world.port.ends(jobs)) == 20
    assert [call[0] for call in world.slurm.calls] == ["squeue"]
    world.slurm.calls.clear()
    elsewhere = replace(jobs[0], ranks=(replace(jobs[0].ranks[0], slurm=None),))
    assert (world.port.ends([elsewhere]), world.slurm.calls) == ({}, [])


def test_an_earlier_run_has_no_word_of_a_later_one_of_the_same_number(world: SlurmWorld) -> None:
    view = ended(world.start_job(restarts=2, state="COMPLETED"))
    world.job(view).restarts = 1
    assert world.port.ends([view]) == {}


def test_a_controller_that_is_away_or_answers_nonsense_is_a_temporary_error(world: SlurmWorld) -> None:
    view = ended(world.start_job(state="COMPLETED"))
    answers = [says(AWAY), Finished(0, b"what|ever\n", b"")]
    world.slurm.before = lambda _: answers.pop()
    while answers:
        with pytest.raises(TemporaryError):
            world.port.ends([view])
    world.slurm.before = lambda _: says(UNKNOWN_TO_SQUEUE)
    assert world.port.ends([view]) == {}
