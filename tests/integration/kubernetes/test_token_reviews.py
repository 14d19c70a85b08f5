"""Logins with tokens that an API server made: of its service accounts, for audiences, and after they ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import SYSTEM, ChartRelease, installed
from integration.kubernetes.target import Connection, KubeTarget, eventually
from tidegauge.http.access import Refusal, Viewer
from tidegauge.http.credentials import BesideFiles
from tidegauge.http.door import WebDoor
from tidegauge.http.namespace_rights import AccessReviews
from tidegauge.http.token_reviews import ReviewUnavailableError, TokenReviews
from tidegauge.settings import Settings
from tidegauge_scheduler_hooks.kubernetes.access_reviewer import ApiAccessReviewer
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.token_reviewer import ApiTokenReviewer

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def token_of(admin: Connection, namespace: str, name: str, *audiences: str) -> str:
    """As ``kubectl create token NAME``."""
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    if admin.ask("GET", f"{path}/{name}").code == 404:
        admin.do("POST", path, {"metadata": {"name": name}})
    spec: dict[str, Any] = {"expirationSeconds": 600, **({"audiences": list(audiences)} if audiences else {})}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made: str = admin.do("POST", f"{path}/{name}/token", body)["status"]["token"]
    return made


VALUES = {"rbac": {"namespaces": [SYSTEM]}, "injection": {"mode": "none"}}
OPEN = {**VALUES, "webAccess": {"open": True}}
"""Without the right to ask."""


@pytest.fixture
def release(kube: KubeTarget, namespace: str, tmp_path: Path) -> Iterator[ChartRelease]:
    with installed(kube, namespace, tmp_path, VALUES) as release:
        yield release


@pytest.fixture
def heads_api(release: ChartRelease) -> ClientApi:
    return open_api(release.kubeconfig("head"), timeout_s=60)


def test_a_service_account_comes_in_until_it_is_deleted(
    heads_api: ClientApi, admin: Connection, namespace: str
) -> None:
    token = token_of(admin, namespace, "train")
    settings = Settings(kubernetes_login=True, api_admins=f"group:system:serviceaccounts:{namespace}-no")

    def door() -> WebDoor:
        tokens, access = ApiTokenReviewer(heads_api, audience=None), ApiAccessReviewer(heads_api)
        return WebDoor(settings, BesideFiles(kubernetes=TokenReviews(tokens), access=AccessReviews(access)))

    name = f"system:serviceaccount:{namespace}:train"
    assert door().admit(f"Bearer {token}", "a") == Viewer(name, sees_all=False, reads_metrics=False)
    admin.do("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/train")
    # A real server still takes a token for ten seconds that it took before (TokenSuccessCacheTTL).
    eventually(lambda: isinstance(door().admit(f"Bearer {token}", "a"), Refusal))


def test_groups_are_those_that_the_server_names(heads_api: ClientApi, admin: Connection, namespace: str) -> None:
    user = ApiTokenReviewer(heads_api, audience=None).review(token_of(admin, namespace, "train"))
    assert user is not None
    assert user.username == f"system:serviceaccount:{namespace}:train"
    assert {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"} <= user.groups


def test_a_token_counts_for_the_audience_that_it_was_made_for(
    heads_api: ClientApi, admin: Connection, namespace: str
) -> None:
    ours, the_servers = ApiTokenReviewer(heads_api, audience="tidegauge"), ApiTokenReviewer(heads_api, audience=None)
    for_us, for_the_server = token_of(admin, namespace, "train", "tidegauge"), token_of(admin, namespace, "train")
    assert [ours.review(token) is not None for token in (for_us, for_the_server)] == [True, False]
    assert [the_servers.review(token) is not None for token in (for_us, for_the_server)] == [False, True]


@pytest.mark.parametrize("token", ["a.b.c", "x", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."])
def test_a_token_that_nobody_made_is_nobodys(heads_api: ClientApi, token: str) -> None:
    assert ApiTokenReviewer(heads_api, audience=None).review(token) is None


def test_a_head_needs_the_right_to_ask_and_no_other(
    kube: KubeTarget, admin: Connection, namespace: str, tmp_path: Path
) -> None:
    token = token_of(admin, namespace, "train")
    with installed(kube, namespace, tmp_path, OPEN) as release:
        release.lacks.add("head: create tokenreviews.authentication.k8s.io")
        reviewer = ApiTokenReviewer(open_api(release.kubeconfig("head"), timeout_s=60), audience=None)
        with pytest.raises(ReviewUnavailableError) as refused:
            reviewer.review(token)
        assert "system:auth-delegator" in str(refused.value)
        release.upgrade(VALUES)
        user = reviewer.review(token)
    assert user is not None
    assert user.username.endswith(":train")
