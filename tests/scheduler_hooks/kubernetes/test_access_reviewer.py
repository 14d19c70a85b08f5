"""Rights reviewed by an API server: only an answer that says so beyond doubt is one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_hooks.kubernetes.scripted_api import Reply, ScriptedApi
from tidegauge.http.namespace_rights import READ, READ_ALL, READ_METRICS, AccessRight
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError
from tidegauge_scheduler_hooks.kubernetes.access_reviewer import ApiAccessReviewer
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api

ADA = ReviewedUser("ada", frozenset({"gpu", "all"}), "u-1", (("scopes", ("a", "b")),))


def reviewed(folder: Path, reply: Reply, wanted: AccessRight = READ_ALL, user: ReviewedUser = ADA) -> tuple[bool, Any]:
    """The reviewer's answer, and what the server was asked."""
    with ScriptedApi(lambda _: reply) as api:
        answer = ApiAccessReviewer(open_api(api.kubeconfig(folder), timeout_s=10)).may(user, wanted)
        (seen,) = api.requests
        assert (seen.method, seen.path) == ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews")
        return answer, seen.body["spec"]


def said(status: Mapping[str, Any] | None) -> Reply:
    return Reply(201, {"kind": "SubjectAccessReview", **({} if status is None else {"status": status})})


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (AccessRight(READ, "team-a"), {"resourceAttributes": {
            "group": "batch", "version": "v1", "resource": "jobs", "verb": "get", "namespace": "team-a",
        }}),
        (READ_ALL, {"resourceAttributes": {
            "group": "batch", "version": "v1", "resource": "jobs", "verb": "get", "namespace": "",
        }}),
        (READ_METRICS, {"nonResourceAttributes": {"path": "/metrics", "verb": "get"}}),
    ],
)  # fmt: skip
def test_a_review_asks_for_one_thing_for_the_whole_user(tmp_path: Path, wanted: AccessRight, asked: Any) -> None:
    user = {"user": "ada", "groups": ["all", "gpu"], "uid": "u-1", "extra": {"scopes": ["a", "b"]}}
    assert reviewed(tmp_path, said({"allowed": True}), wanted) == (True, {**user, **asked})


@pytest.mark.parametrize(
    "status", [{}, {"allowed": False}, {"allowed": "true"}, {"allowed": 1}, {"allowed": True, "denied": True}]
)
def test_an_answer_that_allows_nothing_beyond_doubt_is_no(tmp_path: Path, status: Mapping[str, Any]) -> None:
    assert not reviewed(tmp_path, said(status))[0]


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Reply(403, {"message": "no"}), "system:auth-delegator"), (Reply(500, {"message": "no"}), ""),
        (said(None), "no status"), (Reply(hangs_up=True), ""),
    ],
)  # fmt: skip
def test_a_server_that_does_not_say_leaves_it_open(
    tmp_path: Path, reply: Reply, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ReviewUnavailableError) as unknown:
        reviewed(tmp_path, reply)
    assert told in str(unknown.value)
