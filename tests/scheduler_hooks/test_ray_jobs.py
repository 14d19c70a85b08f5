"""The Ray Jobs adapter against a model of Ray's job API: the contract of every scheduler, and what can go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fake_ray_jobs import Fault, ray_jobs_server, says
from scheduler_hooks.port_contract import ContractWorld, PortContract
from scheduler_hooks.ray_jobs_world import UID, UNCHANGED, UPLOADED, RayWorld, end
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import ActionKind
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    PermanentError,
    Presence,
    TemporaryError,
)


@pytest.fixture
def world() -> Iterator[RayWorld]:
    with ray_jobs_server() as cluster:
        yield RayWorld(cluster)


class TestRayJobs(PortContract):
    """The adapter on the model."""

    @pytest.fixture
    def world(self) -> Iterator[ContractWorld]:
        with ray_jobs_server() as cluster:
            yield RayWorld(cluster)


# What it says of a job


def described(world: RayWorld, job: JobView) -> Any:
    return world.port.describe([job]).get(JobKey(job.job_id, job.attempt, job.ranks[0].uid))


def test_all_jobs_are_described_by_one_request(world: RayWorld) -> None:
    jobs = [world.start_job() for _ in range(20)]
    assert len(world.port.describe(jobs)) == 20
    assert world.cluster.requests == ["GET /api/jobs/"]


def test_ray_jobs_adapter_ignores_ranks_of_another_user(world: RayWorld) -> None:
    job = world.start_job()
    thief = replace(job, ranks=(replace(job.ranks[0], uid=UID + 1),))
    assert world.port.describe([thief]) == {}
    assert world.cluster.requests == [], "and the cluster is not asked for nothing"


def test_consent_is_the_owners_own_word(world: RayWorld) -> None:
    for metadata, requeueable, exempt in (
        ({}, False, False), (None, False, False), ({"tidegauge.requeue": "yes"}, False, False),
        ({"tidegauge.requeue": "True"}, True, False),
        ({"tidegauge.requeue": "true", "tidegauge.actions": "off"}, True, True),
    ):  # fmt: skip
        facts = described(world, world.start_job(metadata=metadata))
        assert (facts.requeueable, facts.exempt) == (requeueable, exempt)
        assert (ActionKind.REQUEUE in facts.can) is requeueable


def test_a_job_without_consent_is_not_requeued_even_if_asked(world: RayWorld) -> None:
    job = world.start_job(metadata={})
    with pytest.raises(PermanentError, match=r"job-0 may not be requeued.*tidegauge\.requeue=true"):
        world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.cluster.stops == []


@pytest.mark.parametrize("submitted", [True, False], ids=["submission", "driver"])
@pytest.mark.parametrize("action", ["requeue", "hold", "cancel"])
def test_a_job_without_a_name_is_talked_to_but_never_ended(world: RayWorld, submitted: bool, action: str) -> None:
    world.start_job(job_id="02000000", runtime_env={"env_vars": {}})
    if not submitted:
        world.cluster.jobs["job-0"]["submission_id"] = None
    job = replace(world.view("job-0"), job_id="ray-02000000")
    facts = described(world, job)
    assert facts.can == {ActionKind.CAP, ActionKind.CHECKPOINT}
    assert not facts.requeueable
    target = world.target(job)
    assert world.port.presence(target) is Presence.RUNNING
    assert "0.5" in world.port.cap(target, 0.5, decision_id="d")
    with pytest.raises(PermanentError, match="TIDEGAUGE_JOB_ID"):
        end(world.port, action, target)
    assert world.cluster.stops == []


def test_a_deleted_job_whose_id_is_used_again_is_another_run(world: RayWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.cluster.add("job-0", start_time=1, runtime_env={"env_vars": {}})
    assert world.port.presence(target) is Presence.GONE
    for action in ("requeue", "hold", "cancel"):
        with pytest.raises(ChangedError):
            end(world.port, action, target)
    assert world.cluster.stops == []


def test_ranks_that_do_not_answer_are_named(world: RayWorld) -> None:
    target = world.target(world.start_job())
    world.ranks.error = "no answer in 10 s"
    with pytest.raises(TemporaryError, match="1 of 1 ranks not capped: rank 0: no answer in 10 s"):
        world.port.cap(target, 0.5, decision_id="d")
    with pytest.raises(TemporaryError, match="no rank known"):
        world.port.cap(replace(target, ranks=()), 0.5, decision_id="d")


# Requeueing


def test_a_cap_outlives_the_process_that_set_it(world: RayWorld) -> None:
    job = world.start_job()
    capped = replace(job, ranks=(replace(job.ranks[0], cap_fraction=0.5),))
    world.another_port().requeue(world.target(capped), UNCHANGED, "leaks", decision_id="d")
    assert world.environ(job)["TIDEGAUGE_MEMORY_FRACTION"] == "0.5"


def test_ray_jobs_requeue_keeps_the_uploaded_package(world: RayWorld) -> None:
    job = world.start_job()
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert UPLOADED in world.cluster.packages


def test_a_job_whose_upload_is_gone_is_left_alone(world: RayWorld) -> None:
    job = world.start_job()
    world.cluster.packages.clear()
    with pytest.raises(PermanentError, match=f"job-0 cannot be requeued: {UPLOADED}"):
        world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.alive(job)


def test_a_job_is_left_alone_whose_next_id_is_taken(world: RayWorld) -> None:
    job = world.start_job()
    world.cluster.add("job-0-attempt-1", metadata={}, runtime_env={"env_vars": {}})
    target = world.target(job)
    with pytest.raises(PermanentError, match="the id job-0-attempt-1 belongs to another job"):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.RUNNING
    world.port.cancel(target, "leaks", decision_id="d2")
    assert world.port.presence(target) is Presence.GONE


def test_a_job_that_does_not_stop_is_not_started_twice(world: RayWorld) -> None:
    job = world.start_job()
    world.cluster.ignores_stops = True
    with pytest.raises(TemporaryError, match="job-0 is still running"):
        world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert world.cluster.submitted == []
    world.cluster.ignores_stops = False
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert len(world.cluster.submitted) == 1


def test_a_job_that_its_owner_stopped_is_not_brought_back(world: RayWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.cluster.end("job-0", "STOPPED")
    assert world.port.presence(target) is Presence.GONE
    with pytest.raises(ChangedError, match="job-0 has already ended"):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    assert world.cluster.submitted == []


@pytest.mark.parametrize("when", ["instead", "afterwards"], ids=["before Ray stops it", "before Ray has stopped it"])
def test_a_job_that_finishes_as_it_is_stopped_is_not_started_again(world: RayWorld, when: str) -> None:
    target = world.target(world.start_job())

    def finish(request: str) -> Fault | None:
        if request.endswith("/stop"):
            world.cluster.end("job-0", "SUCCEEDED")
        return None

    setattr(world.cluster, when, finish)
    with pytest.raises(TemporaryError if when == "instead" else ChangedError):
        world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    with pytest.raises(ChangedError):
        world.another_port().requeue(target, UNCHANGED, "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.GONE
    assert world.cluster.submitted == []


def test_two_decisions_on_one_run_start_it_once(world: RayWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d-1")
    with pytest.raises(ChangedError, match=r"already continues as job-0-attempt-1, by decision d-1"):
        world.another_port().requeue(target, UNCHANGED, "leaks", decision_id="d-2")
    assert world.starts(job) == 2


def test_a_submission_that_was_taken_is_done_whatever_was_answered(world: RayWorld) -> None:
    job = world.start_job()
    target = world.target(job)
    world.cluster.afterwards = lambda request: says(400, "it exists already") if request == "POST /api/jobs/" else None
    world.port.requeue(target, UNCHANGED, "leaks", decision_id="d")
    assert world.port.presence(target) is Presence.REPLACED
    assert world.starts(job) == 2


# How jobs ended


@pytest.mark.parametrize(
    ("status", "word"),
    [("SUCCEEDED", JobEnd.COMPLETED), ("FAILED", JobEnd.FAILED), ("STOPPED", JobEnd.CANCELLED), ("RUNNING", None)],
)
def test_ray_tells_how_a_run_ended(world: RayWorld, status: str, word: JobEnd | None) -> None:
    job, other = world.start_job(), world.start_job()
    world.cluster.end(world.latest(job)["submission_id"], status)
    ends = world.another_port().ends([job, other])
    assert (ends.get(job.key), ends.get(other.key)) == (word, None)


def test_of_a_job_without_a_name_and_of_another_users_ray_tells_nothing(world: RayWorld) -> None:
    job = world.start_job(runtime_env={"env_vars": {}}, status="SUCCEEDED")
    assert world.another_port().ends([job]) == {}
    named = world.start_job(status="SUCCEEDED")
    thief = replace(named, ranks=(replace(named.ranks[0], uid=UID + 1),))
    assert world.another_port().ends([thief]) == {}


def test_of_an_earlier_run_ray_tells_nothing_of_the_later_one(world: RayWorld) -> None:
    job = world.start_job(status="SUCCEEDED")
    assert world.another_port().ends([world.view(job.job_id, attempt=1)]) == {}
