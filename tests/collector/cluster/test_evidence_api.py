"""The page on evidence: of an incident, of a job, bounded."""

from __future__ import annotations

from typing import Any

import pytest

from evidence_values import evidence, nothing_found
from loop_store import FakeStore, serving, told_store
from sample_views import NOW_S
from tidegauge.cluster.api import client
from tidegauge.cluster.api.memory_api import MAX_PIECES
from tidegauge.core.evidence import CauseFound, Evidence
from tidegauge.core.evidence.brief import EvidenceCause
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.wire import from_wire

STATUS = LoopStatus("act", None)
OF_JOB = "/api/v1/evidence?job_id=4711&attempt=0&uid=1001"


@pytest.fixture
def store() -> FakeStore:
    store = told_store()
    store.evidence.pieces = [
        evidence(1),
        evidence(0, evidence_id="fragmentation", cause=CauseFound(EvidenceCause.FRAGMENTATION)),
        nothing_found(2),
        evidence(job=JobKey("4712", 1, 1002)),
    ]
    return store


def ask(store: FakeStore, path: str) -> Any:
    with serving(store, STATUS) as url:
        return client.get(url, path)


def test_an_incidents_evidence_is_what_its_cause_explains_the_piece_that_says_most_first(store: FakeStore) -> None:
    found = ask(store, "/api/v1/evidence?incident=1")["evidence"]
    assert [from_wire(Evidence, raw) for raw in found] == [evidence(1), nothing_found(2)]


def test_a_jobs_evidence_is_all_of_it_the_newest_first(store: FakeStore) -> None:
    assert [raw["rank"] for raw in ask(store, OF_JOB)["evidence"]] == [2, 0, 1]
    assert [raw["rank"] for raw in ask(store, OF_JOB + "&limit=1")["evidence"]] == [2]
    assert ask(store, "/api/v1/evidence?job_id=4711&attempt=0&uid=7") == {"evidence": []}


def test_an_answer_is_bounded(store: FakeStore) -> None:
    store.evidence.pieces = [evidence(number, evidence_id=f"e{number}", at_unix_s=NOW_S) for number in range(30)]
    assert len(ask(store, OF_JOB)["evidence"]) == MAX_PIECES
    assert len(ask(store, "/api/v1/evidence?incident=1")["evidence"]) == MAX_PIECES


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/v1/evidence", 400, "job_id is missing"),
        ("/api/v1/evidence?job_id=4711", 400, "uid is missing"),
        ("/api/v1/evidence?incident=-1", 400, "whole number"),
        ("/api/v1/evidence?incident=1&limit=999", 400, "limit may be"),
        ("/api/v1/evidence?incident=99", 404, "no incident 99"),
    ],
)
def test_evidence_api_error_says_why(store: FakeStore, path: str, status: int, words: str) -> None:
    with pytest.raises(client.ApiError, match=words) as caught:
        ask(store, path)
    assert caught.value.status == status


def test_a_database_that_is_away_is_said_to_be(store: FakeStore) -> None:
    store.problem = "disk full"
    with pytest.raises(client.ApiError, match="disk full") as caught:
        ask(store, OF_JOB)
    assert caught.value.status == 503
