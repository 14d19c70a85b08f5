"""Which Ray job a watched job is, and what is submitted for its next run."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sample_views import NOW_S, identity, job_view, rank_summary
from tidegauge.core.ids import JobId
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import PermanentError, RequeueChanges
from tidegauge_scheduler_hooks.ray_jobs.api import RayJob
from tidegauge_scheduler_hooks.ray_jobs.submissions import (
    DECISION_KEY,
    FOLLOWS_KEY,
    find,
    follower_id,
    follower_request,
    gpu_share_of,
    incarnation_of,
    packages_of,
    parse_incarnation,
    requeue_mark,
    restarts_of,
)

NOW_MS = int(NOW_S * 1000)


def ray_job(submission_id: str | None = "llm", *, environ: dict[str, str] | None = None, **changes: Any) -> RayJob:
    """A running job named ``llm`` that was submitted an hour before it was last seen."""
    whole: dict[str, Any] = {
        "submission_id": submission_id,
        "ray_job_id": "02000000",
        "status": "RUNNING",
        "entrypoint": "python train.py",
        "started_unix_ms": NOW_MS - 3_600_000,
        "metadata": {"tidegauge.requeue": "true"},
        "runtime_env": {"env_vars": {"TIDEGAUGE_JOB_ID": "llm"} if environ is None else environ},
    }
    return RayJob(**{**whole, **changes})


def attempt(number: int, **changes: Any) -> RayJob:
    """One of the runs of ``llm``; each was submitted ten minutes after the one before."""
    started_unix_ms = NOW_MS - 3_600_000 + number * 600_000
    environ = {"TIDEGAUGE_JOB_ID": "llm", "TIDEGAUGE_ATTEMPT": str(number)}
    return ray_job(f"llm-attempt-{number}", environ=environ, **{"started_unix_ms": started_unix_ms, **changes})


def seen(job_id: str = "llm", *, attempt: int = 0, at_s: float = NOW_S) -> JobView:
    """A job of one rank as the coordinator sees it."""
    rank = rank_summary(0, identity=identity(job_id=JobId(job_id), attempt=attempt), last_sample_unix_s=at_s)
    return job_view(job_id=job_id, attempt=attempt, world_size=1, ranks=(rank,))


def request(job: RayJob, changes: RequeueChanges | None = None, **handle: Any) -> dict[str, Any]:
    return follower_request(job, changes or RequeueChanges(), handle, fraction=None, decision_id="d-1")


# Which job it is


def test_a_job_is_found_by_the_name_that_its_owner_gave_it() -> None:
    jobs = [ray_job("other", environ={"TIDEGAUGE_JOB_ID": "bert"}), ray_job(), ray_job("nameless", environ={})]
    assert find(seen(), jobs) == (jobs[1], True)


def test_a_number_that_every_cluster_gives_out_is_not_a_name() -> None:
    job = ray_job(environ={})
    assert find(seen("ray-02000000"), [job]) == (job, False)
    assert find(seen("ray-03000000"), [job]) == (None, False)
    assert find(seen("02000000"), [job]) == (None, False)


def test_a_driver_that_was_started_by_hand_is_found_by_its_number_only() -> None:
    driver = ray_job(None)
    assert find(seen("ray-02000000"), [driver]) == (driver, False)
    assert find(seen("llm"), [driver]) == (None, False)


def test_each_run_is_the_one_with_its_attempt() -> None:
    first, second = attempt(0, status="STOPPED"), attempt(1)
    assert find(seen(attempt=0), [first, second]) == (first, True)
    assert find(seen(attempt=1), [first, second]) == (second, True)


def test_ranks_of_a_replaced_run_are_not_taken_for_the_next_one() -> None:
    # torchrun counts its own restarts too: attempt 1 may be the first run's second try.
    first, second = attempt(0, status="STOPPED"), attempt(1)
    before_second_s = second.started_unix_ms / 1000 - 1
    assert find(seen(attempt=1, at_s=before_second_s), [first, second]) == (first, True)


def test_two_running_jobs_of_one_name_are_neither() -> None:
    assert find(seen(), [ray_job("a"), ray_job("b")]) == (None, True)


def test_a_name_that_is_used_again_is_the_latest_run_of_it() -> None:
    old = ray_job("old", status="SUCCEEDED", started_unix_ms=NOW_MS - 9_000_000)
    ended = ray_job("new", status="FAILED")
    assert find(seen(), [old, ray_job("new")])[0] == ray_job("new")
    assert find(seen(), [ended, old])[0] == ended


# Names of runs


@given(st.text(min_size=1), st.integers(0, 2**45))
def test_an_incarnation_can_be_taken_apart_again(submission_id: str, started_unix_ms: int) -> None:
    job = ray_job(submission_id, started_unix_ms=started_unix_ms)
    assert parse_incarnation(incarnation_of(job, named=True)) == (submission_id, started_unix_ms)


@pytest.mark.parametrize("text", ["", "none", "llm@", "llm@x", "llm@-3", "@"])
def test_ray_job_incarnation_that_is_invalid_has_no_time(text: str) -> None:
    assert parse_incarnation(text)[1] is None


def test_ids_count_on_from_the_first() -> None:
    job = ray_job("llm")
    ids = []
    for number in range(1, 12):
        following = request(job)
        assert following["submission_id"] == follower_id(job)
        ids.append(following["submission_id"])
        job = ray_job(
            following["submission_id"],
            metadata=following["metadata"],
            runtime_env=following["runtime_env"],
            started_unix_ms=number,
        )
    assert ids == [f"llm-attempt-{number}" for number in range(1, 12)]


def test_an_owners_own_id_is_not_shortened() -> None:
    job = ray_job("llm-attempt-3", environ={"TIDEGAUGE_ATTEMPT": "3"})
    assert follower_id(job) == "llm-attempt-3-attempt-4"


def test_the_same_run_has_the_same_mark_and_another_another() -> None:
    assert requeue_mark(ray_job(status="RUNNING")) == requeue_mark(ray_job(status="STOPPED"))
    assert requeue_mark(ray_job()) != requeue_mark(ray_job(started_unix_ms=1))


# The next run


def test_the_next_run_is_the_same_but_for_what_was_asked() -> None:
    job = ray_job(
        metadata={"tidegauge.requeue": "true", "owner": "ada"},
        runtime_env={"working_dir": "gcs://a.zip", "pip": ["x"], "env_vars": {"TIDEGAUGE_JOB_ID": "llm", "A": "b c"}},
    )
    assert request(job, RequeueChanges({"expandable_segments": "True"}, {"TIDEGAUGE_MEMORY_FRACTION": "0.4"})) == {
        "entrypoint": "python train.py",
        "submission_id": "llm-attempt-1",
        "metadata": {
            "tidegauge.requeue": "true", "owner": "ada",
            FOLLOWS_KEY: incarnation_of(job, named=True), DECISION_KEY: "d-1",
        },
        "runtime_env": {
            "working_dir": "gcs://a.zip", "pip": ["x"],
            "env_vars": {
                "TIDEGAUGE_JOB_ID": "llm", "A": "b c", "TIDEGAUGE_ATTEMPT": "1",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TIDEGAUGE_MEMORY_FRACTION": "0.4",
            },
        },
    }  # fmt: skip


def test_allocator_settings_join_those_of_the_job() -> None:
    job = ray_job(environ={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:256"})
    environ = request(job, RequeueChanges({"expandable_segments": "True"}))["runtime_env"]["env_vars"]
    assert environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:256,expandable_segments:True"


def test_allocator_settings_that_come_from_the_nodes_are_not_lost() -> None:
    changes = RequeueChanges({"expandable_segments": "True"})
    environ = request(ray_job(), changes, alloc_conf="max_split_size_mb:256", torch_version="2.11.0")
    assert environ["runtime_env"]["env_vars"]["PYTORCH_CUDA_ALLOC_CONF"] == (
        "max_split_size_mb:256,expandable_segments:True"
    )
    assert "PYTORCH_CUDA_ALLOC_CONF" not in request(ray_job(), alloc_conf="a:1")["runtime_env"]["env_vars"]


def test_a_cap_stays_and_a_new_one_wins() -> None:
    changes = RequeueChanges(environ={"TIDEGAUGE_MEMORY_FRACTION": "0.3"})
    for given_changes, expected in ((RequeueChanges(), "0.5"), (changes, "0.3")):
        made = follower_request(ray_job(), given_changes, {}, fraction=0.5, decision_id="d-1")
        assert made["runtime_env"]["env_vars"]["TIDEGAUGE_MEMORY_FRACTION"] == expected


def test_ray_job_resubmission_requests_the_entrypoints_resources() -> None:
    job = ray_job(
        metadata={
            "tidegauge.entrypoint_num_gpus": "0.5",
            "tidegauge.entrypoint_memory": "1073741824",
            "tidegauge.entrypoint_resources": '{"fast": 1}',
        }
    )
    made = request(job)
    assert (made["entrypoint_num_gpus"], made["entrypoint_memory"], made["entrypoint_resources"]) == (
        0.5, 2**30, {"fast": 1},
    )  # fmt: skip
    assert "entrypoint_num_cpus" not in made


@pytest.mark.parametrize("name", ["entrypoint_num_gpus", "entrypoint_memory", "entrypoint_resources"])
@pytest.mark.parametrize("text", ["two", '["a"]'])
def test_needs_that_cannot_be_read_keep_the_job_from_being_submitted(name: str, text: str) -> None:
    with pytest.raises(PermanentError, match=rf"llm cannot be submitted again.*tidegauge\.{name} is "):
        request(ray_job(metadata={f"tidegauge.{name}": text}))


def test_hidden_variables_are_not_submitted() -> None:
    with pytest.raises(PermanentError, match="llm cannot be submitted again"):
        request(ray_job(environ={"SECRET": "<redacted>"}))


# Small readers


@pytest.mark.parametrize(("text", "restarts"), [("0", 0), ("7", 7), ("", 0), ("-1", 0), ("x", 0), ("1" * 30, 0)])
def test_restarts_are_read_or_none(text: str, restarts: int) -> None:
    assert restarts_of(ray_job(environ={"TIDEGAUGE_ATTEMPT": text})) == restarts


@pytest.mark.parametrize(
    ("text", "share"), [("0.25", 0.25), ("1", 1.0), ("0", None), ("2", None), ("nan", None), ("", None)]
)
def test_a_share_is_read_or_none(text: str, share: float | None) -> None:
    assert gpu_share_of(ray_job(environ={"TIDEGAUGE_GPU_SHARE": text})) == share


def test_packages_are_found_wherever_they_are_named() -> None:
    runtime_env = {
        "working_dir": "gcs://a.zip", "py_modules": ["gcs://b.whl", "s3://c.zip"], "pip": ["d"], "env_vars": {"E": "f"},
    }  # fmt: skip
    assert list(packages_of(runtime_env)) == ["gcs://a.zip", "gcs://b.whl"]
