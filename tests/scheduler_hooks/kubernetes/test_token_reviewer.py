"""Tokens reviewed by an API server: only an answer that says so beyond doubt names anybody."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scheduler_hooks.kubernetes.scripted_api import Reply, ScriptedApi, Seen
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError
from tidegauge_scheduler_hooks.kubernetes.client.api import open_api
from tidegauge_scheduler_hooks.kubernetes.token_reviewer import TOKEN_ID, ApiTokenReviewer

TOKEN = "CANARY.of.ada"
USER = {
    "username": "ada",
    "uid": "1",
    "groups": ["gpu", "system:authenticated"],
    "extra": {"a": ["b"], TOKEN_ID: ["7"]},
}
ADA = ReviewedUser("ada", frozenset({"gpu", "system:authenticated"}), "1", (("a", ("b",)),))


def reviewed(folder: Path, status: Mapping[str, Any] | None, audience: str | None = None, code: int = 201) -> Any:
    """What the reviewer makes of a server's answer, and what the server was asked."""

    def answer(seen: Seen) -> Reply:
        body = {
            "kind": "TokenReview",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"creationTimestamp": None},
        }
        return Reply(code, {**body, **({} if status is None else {"status": status})})

    with ScriptedApi(answer) as api:
        reviewer = ApiTokenReviewer(open_api(api.kubeconfig(folder), timeout_s=10), audience=audience)
        user = reviewer.review(TOKEN)
        (seen,) = api.requests
        return user, seen


def test_a_review_names_user_and_groups_and_asks_for_nothing_but_the_token(tmp_path: Path) -> None:
    user, seen = reviewed(tmp_path, {"authenticated": True, "user": USER, "audiences": ["https://kubernetes"]})
    assert user == ADA
    assert (seen.method, seen.path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert seen.body == {
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": TOKEN},
    }  # fmt: skip


def test_an_audience_is_asked_for_and_has_to_be_confirmed(tmp_path: Path) -> None:
    status = {"authenticated": True, "user": USER}
    user, seen = reviewed(tmp_path, {**status, "audiences": ["tidegauge"]}, "tidegauge")
    assert (user, seen.body["spec"]["audiences"]) == (ADA, ["tidegauge"])
    for audiences in (["https://kubernetes"], [], None):
        assert reviewed(tmp_path, {**status, "audiences": audiences}, "tidegauge")[0] is None
    assert reviewed(tmp_path, status, "tidegauge")[0] is None, "a server that knows no audiences"


@pytest.mark.parametrize(
    "status",
    [
        None, {}, {"user": {}, "error": "[invalid bearer token, token lookup failed]"},
        {"authenticated": False, "user": USER}, {"authenticated": "true", "user": USER},
        {"authenticated": 1, "user": USER},
        {"authenticated": True}, {"authenticated": True, "user": {}}, {"authenticated": True, "user": {"username": ""}},
        {"authenticated": True, "user": {"username": 7}}, {"authenticated": True, "user": "ada"},
        {"authenticated": True, "user": {"username": "a" * 600}},
        {"authenticated": True, "user": {"username": "ada", "groups": "gpu"}},
    ],
)  # fmt: skip
def test_an_answer_that_names_nobody_admits_nobody(tmp_path: Path, status: Mapping[str, Any] | None) -> None:
    assert reviewed(tmp_path, status)[0] is None


@pytest.mark.parametrize(("code", "told"), [(403, "system:auth-delegator"), (401, ""), (500, ""), (404, "")])
def test_a_server_that_refuses_is_told_in_the_log_without_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int, told: str
) -> None:
    with caplog.at_level(logging.INFO), pytest.raises(ReviewUnavailableError):
        reviewed(tmp_path, {"message": "no"}, code=code)
    assert "tokens of Kubernetes cannot be checked" in caplog.text
    assert told in caplog.text
    assert "CANARY" not in caplog.text


def test_a_server_that_is_away_leaves_it_open(tmp_path: Path) -> None:
    with ScriptedApi(lambda _: Reply(hangs_up=True)) as api:
        reviewer = ApiTokenReviewer(open_api(api.kubeconfig(tmp_path), timeout_s=5), audience=None)
        with pytest.raises(ReviewUnavailableError):
            reviewer.review(TOKEN)
