"""Logins with tokens that an API server made: of its service accounts, for audiences, and after they ended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

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


def api_as(kube: KubeTarget, folder: Path, token: str) -> ClientApi:
    """The client with a service account's own token, as in a pod."""
    config = yaml.safe_load(kube.kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    for cluster in config["clusters"]:
        authority = cluster["cluster"].get("certificate-authority")
        if authority:
            cluster["cluster"]["certificate-authority"] = str(kube.kubeconfig.parent / authority)
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return open_api(file, timeout_s=60)


def test_a_service_account_comes_in_until_it_is_deleted(kube_api: ClientApi, admin: Connection, namespace: str) -> None:
    token = token_of(admin, namespace, "train")
    settings = Settings(kubernetes_login=True, api_admins=f"group:system:serviceaccounts:{namespace}-no")

    def door() -> WebDoor:
        tokens, access = ApiTokenReviewer(kube_api, audience=None), ApiAccessReviewer(kube_api)
        return WebDoor(settings, BesideFiles(kubernetes=TokenReviews(tokens), access=AccessReviews(access)))

    name = f"system:serviceaccount:{namespace}:train"
    assert door().admit(f"Bearer {token}", "a") == Viewer(name, sees_all=False, reads_metrics=False)
    admin.do("DELETE", f"/api/v1/namespaces/{namespace}/serviceaccounts/train")
    # A real server still takes a token for ten seconds that it took before (TokenSuccessCacheTTL).
    eventually(lambda: isinstance(door().admit(f"Bearer {token}", "a"), Refusal))


def test_groups_are_those_that_the_server_names(kube_api: ClientApi, admin: Connection, namespace: str) -> None:
    user = ApiTokenReviewer(kube_api, audience=None).review(token_of(admin, namespace, "train"))
    assert user is not None
    assert user.username == f"system:serviceaccount:{namespace}:train"
    assert {"system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"} <= user.groups


def test_a_token_counts_for_the_audience_that_it_was_made_for(
    kube_api: ClientApi, admin: Connection, namespace: str
) -> None:
    ours, the_servers = ApiTokenReviewer(kube_api, audience="tidegauge"), ApiTokenReviewer(kube_api, audience=None)
    for_us, for_the_server = token_of(admin, namespace, "train", "tidegauge"), token_of(admin, namespace, "train")
    assert [ours.review(token) is not None for token in (for_us, for_the_server)] == [True, False]
    assert [the_servers.review(token) is not None for token in (for_us, for_the_server)] == [False, True]


@pytest.mark.parametrize("token", ["a.b.c", "x", "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9."])
def test_a_token_that_nobody_made_is_nobodys(kube_api: ClientApi, token: str) -> None:
    assert ApiTokenReviewer(kube_api, audience=None).review(token) is None


def test_a_head_needs_the_right_to_ask_and_no_other(
    kube: KubeTarget, admin: Connection, namespace: str, tmp_path: Path
) -> None:
    token, heads = token_of(admin, namespace, "train"), token_of(admin, namespace, "head")
    reviewer = ApiTokenReviewer(api_as(kube, tmp_path, heads), audience=None)
    with pytest.raises(ReviewUnavailableError) as refused:
        reviewer.review(token)
    assert "system:auth-delegator" in str(refused.value)
    name = f"{namespace}-reviews"
    rules = [{"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]}]
    labels = {"tidegauge-test/namespace": namespace}
    admin.do("POST", f"{RBAC}/clusterroles", {"metadata": {"name": name, "labels": labels}, "rules": rules})
    binding = {
        "metadata": {"name": name, "labels": labels},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": "head", "namespace": namespace}],
    }
    admin.do("POST", f"{RBAC}/clusterrolebindings", binding)
    user = reviewer.review(token)
    assert user is not None
    assert user.username.endswith(":train")
