"""The pages on records of jobs: which ones they find, and what they tell of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from loop_store import FakeJobs, FakeProfiles, FakeStore, told_store
from rank_profiles import rank_profile
from sample_views import NOW_S, job_record
from scheduler_values import JOB
from tidegauge.cluster.api.http_api import BadRequestError, NotFoundError, Request
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobEnd
from tidegauge.http.access import EVERYBODY, Viewer

FIRST = job_record(array="123_4")
AGAIN = job_record(
    job=JOB._replace(attempt=1), started_unix_s=NOW_S, updated_unix_s=NOW_S + 5.0, ended_unix_s=None, end=None
)
BOBS = job_record(
    job=JobKey("4712", 0, 7), user_name="bob", account="ml", job_name="train", end=JobEnd.OOM,
    ended_unix_s=NOW_S + 50.0,
)  # fmt: skip
ADA = Viewer("ada", sees_all=False, reads_metrics=False)

Get = Callable[..., Any]


@pytest.fixture
def store() -> FakeStore:
    store = told_store()
    store.jobs = FakeJobs([FIRST, AGAIN, BOBS], {FIRST: JobMemory((FIRST.fullest,))})
    return store


@pytest.fixture
def get(store: FakeStore) -> Get:
    def answer(path: str, *, viewer: Viewer = EVERYBODY, **query: object) -> Any:
        fields = {name: str(value) for name, value in query.items()}
        return json.loads(RecordPages(store).routes()[f"/api/v1/{path}"](Request(fields, None, viewer)).body)

    return answer


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, ["4712", "4711"]),
        ({"since": int(NOW_S)}, ["4712"]),
        ({"until": int(NOW_S)}, ["4711"]),
        ({"user": "bob"}, ["4712"]),
        ({"account": "ml"}, ["4712"]),
        ({"name": "llm*"}, ["4711"]),
        ({"ended": "oom"}, ["4712"]),
        ({"job_id": "123_4"}, ["4711"]),
        ({"limit": 1}, ["4712"]),
        ({"user": "nobody"}, []),
    ],
)
def test_ended_jobs_are_those_that_were_asked_for(get: Get, query: dict[str, object], found: list[str]) -> None:
    answer = get("ended-jobs", **query)
    assert [one["job"]["job_id"] for one in answer["jobs"]] == found
    assert answer["left_out"] == (1 if "limit" in query else 0)


def test_a_user_finds_none_of_anothers_jobs_by_any_filter(get: Get) -> None:
    for query in ({"user": "bob"}, {"name": "train"}, {"job_id": "4712"}):
        assert get("ended-jobs", viewer=ADA, **query) == {"jobs": [], "left_out": 0, "seen_as": "ada"}
    for query in ({"name": "train"}, {"job_id": "4712"}):
        with pytest.raises(NotFoundError, match="no such job is on record"):
            get("job-record", viewer=ADA, **query)


def test_an_unknown_end_is_answered_with_those_that_there_are(get: Get) -> None:
    with pytest.raises(BadRequestError, match=r"one of unknown, ended, killed, .*oom, not 'badly'"):
        get("ended-jobs", ended="badly")


def test_a_job_is_its_latest_start_with_all_attempts_and_incidents(get: Get) -> None:
    for query in ({"job_id": "4711"}, {"name": "llm-pretrain"}, {"job_id": "4711", "uid": 1001}):
        answer = get("job-record", **query)
        assert (answer["record"]["job"]["attempt"], answer["record"]["end"], answer["memory"]) == (1, None, None)
        assert [one["job"]["attempt"] for one in answer["attempts"]] == [1, 0]
        assert (answer["incidents"], answer["has_profile"]) == ([], False)


def test_an_earlier_attempt_has_its_own_memory_incidents_and_profile(store: FakeStore, get: Get) -> None:
    store.profiles = FakeProfiles([rank_profile(0, job=JOB)])
    for query in ({"job_id": "4711", "attempt": 0}, {"job_id": "123_4"}):
        answer = get("job-record", viewer=ADA, **query)
        assert answer["record"]["end"] == "ended"
        assert [one["rank"] for one in answer["memory"]["peaks"]] == [1]
        assert [one["number"] for one in answer["incidents"]] == [1]
        assert answer["incidents"][0]["last_decision"] is not None
        assert answer["has_profile"] is True


def test_a_job_needs_an_id_or_a_name(get: Get) -> None:
    with pytest.raises(BadRequestError, match="job_id or name is missing"):
        get("job-record", attempt=1)
