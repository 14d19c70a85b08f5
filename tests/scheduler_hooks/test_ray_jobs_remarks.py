"""Remarks on Ray jobs that ended, against a model of Ray's job API: by a submission that the model carries out."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from fake_ray_jobs import ray_jobs_server
from sample_views import job_record
from scheduler_hooks.ray_jobs_world import UID, UNCHANGED, RayWorld
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError
from tidegauge_scheduler_hooks.ray_jobs.remarks import PROGRAM

RECORD = job_record(end=JobEnd.COMPLETED)
TEXT = 'completed after 5 s; `tidegauge job "it\'s"` has all of it'


class RemarkWorld(RayWorld):
    """A cluster that runs the program at once."""

    def run(self, entry: dict[str, Any]) -> None:
        python, _, program, job_id, started, key, text = shlex.split(entry["entrypoint"])
        assert (python, program) == ("python", PROGRAM)
        job = self.cluster.jobs[job_id]
        assert str(job["start_time"]) == started
        job["metadata"] = {**(job["metadata"] or {}), key: text}
        self.cluster.end(entry["submission_id"], "SUCCEEDED")

    def fail(self, entry: dict[str, Any]) -> None:
        self.cluster.end(entry["submission_id"], "FAILED")

    def over(self, **changes: Any) -> JobView:
        return self.start_job(status="SUCCEEDED", metadata={"a": "b"}, **changes)

    def remark(self, job: JobView) -> None:
        self.another_port().remark_end(job, RECORD, TEXT)

    def metadata(self, job: JobView) -> Any:
        return self.latest(job)["metadata"]

    def started(self) -> int:
        """Submissions of ours."""
        return len(self.cluster.submitted)


@pytest.fixture
def world() -> Iterator[RemarkWorld]:
    with ray_jobs_server() as cluster:
        world = RemarkWorld(cluster)
        cluster.runs = world.run
        yield world


def test_a_remark_is_added_to_the_metadata_once_and_our_submission_is_gone(world: RemarkWorld) -> None:
    job = world.over()
    for _ in range(2):
        world.remark(job)
        assert world.metadata(job) == {"a": "b", "tidegauge.end": TEXT}
    assert (world.started(), len(world.cluster.jobs)) == (1, 1)


def test_a_job_that_still_runs_is_remarked_on_later(world: RemarkWorld) -> None:
    job = world.start_job()
    with pytest.raises(TemporaryError, match="has not ended yet"):
        world.remark(job)
    assert world.started() == 0


def test_jobs_that_are_exempt_nameless_or_another_users_have_no_remark(world: RemarkWorld) -> None:
    exempt = world.start_job(status="SUCCEEDED", metadata={"tidegauge.actions": "off"})
    nameless = world.start_job(status="SUCCEEDED", runtime_env={"env_vars": {}})
    other = world.over()
    for job in (exempt, nameless, replace(other, ranks=(replace(other.ranks[0], uid=UID + 1),))):
        world.remark(job)
    assert world.started() == 0


def test_an_earlier_run_of_the_name_has_not_the_remark_of_a_later_one(world: RemarkWorld) -> None:
    job = world.over()
    world.remark(world.view(job.job_id, attempt=1))
    assert world.started() == 0


def test_a_cluster_that_cannot_do_it_is_not_asked_again_and_keeps_nothing_of_ours(world: RemarkWorld) -> None:
    world.cluster.runs = world.fail
    job = world.over()
    with pytest.raises(PermanentError, match="`python` has no Ray, or a Ray that keeps jobs in another way"):
        world.remark(job)
    assert (world.metadata(job), len(world.cluster.jobs)) == ({"a": "b"}, 1)


def test_a_remark_that_takes_long_is_looked_at_again_and_not_begun_twice(world: RemarkWorld) -> None:
    begun: list[dict[str, Any]] = []
    world.cluster.runs = begun.append
    job = world.over()
    with pytest.raises(TemporaryError, match="has not ended yet"):
        world.remark(job)
    world.run(begun[0])
    world.remark(job)
    assert world.metadata(job)["tidegauge.end"] == TEXT
    assert (world.started(), len(world.cluster.jobs)) == (1, 1)


def test_what_is_left_of_earlier_submissions_of_ours_is_deleted(world: RemarkWorld) -> None:
    world.cluster.add("tidegauge-remark-0", status="FAILED", runtime_env=None, metadata=None, start_time=None)
    world.cluster.add("tidegauge-remark-1", status="RUNNING", runtime_env={}, metadata={})
    world.cluster.add("somebody's", status="FAILED", runtime_env={}, metadata={})
    job = world.over()
    world.remark(job)
    assert {*world.cluster.jobs} == {"tidegauge-remark-1", "somebody's", job.job_id}


def test_the_next_run_has_no_remark_of_the_one_before(world: RemarkWorld) -> None:
    job = world.start_job(metadata={"tidegauge.requeue": "true", "tidegauge.end": "of a run that its owner copied"})
    world.port.requeue(world.target(job), UNCHANGED, "leaks", decision_id="d")
    assert "tidegauge.end" not in world.metadata(job)
    assert world.metadata(job)["tidegauge.requeue"] == "true"
