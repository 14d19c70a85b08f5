"""What an API server says that users may: by its own roles, for a page of hundreds of namespaces, and without the right
to ask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.kubernetes.chart_accounts import installed
from integration.kubernetes.target import Connection, KubeTarget
from integration.kubernetes.test_token_reviews import OPEN, RBAC, heads_api, release, token_of
from tidegauge.http.namespace_rights import CHANGE, READ, READ_ALL, AccessReviews, AccessRight, RightsOfUser
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError
from tidegauge_scheduler_hooks.kubernetes.access_reviewer import ApiAccessReviewer
from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, open_api
from tidegauge_scheduler_hooks.kubernetes.token_reviewer import ApiTokenReviewer
from waiting import PATIENCE_S

__all__ = ["heads_api", "release"]  # fixtures

MANY = 300


def user_of(api: ClientApi, admin: Connection, namespace: str, name: str = "train") -> ReviewedUser:
    user = ApiTokenReviewer(api, audience=None).review(token_of(admin, namespace, name))
    assert user is not None
    return user


def allow(admin: Connection, namespace: str, verbs: list[str], user: ReviewedUser) -> None:
    """On jobs, by a Role of the namespace."""
    path = f"{RBAC}/namespaces/{namespace}"
    rules = [{"apiGroups": ["batch"], "resources": ["jobs"], "verbs": verbs}]
    admin.do("POST", f"{path}/roles", {"metadata": {"name": "jobs"}, "rules": rules})
    binding: dict[str, Any] = {
        "metadata": {"name": "jobs"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "jobs"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user.username}],
    }
    admin.do("POST", f"{path}/rolebindings", binding)


def test_a_user_may_what_a_role_of_the_namespace_says(heads_api: ClientApi, admin: Connection, namespace: str) -> None:
    user, reviewer = user_of(heads_api, admin, namespace), ApiAccessReviewer(heads_api)
    assert not reviewer.may(user, AccessRight(READ, namespace)), "to be of a namespace gives nothing"
    allow(admin, namespace, ["get", "list"], user)
    asked = [AccessRight(READ, namespace), AccessRight(CHANGE, namespace), AccessRight(READ, "default"), READ_ALL]
    assert [reviewer.may(user, wanted) for wanted in asked] == [True, False, False, False]
    everywhere = ReviewedUser("root", frozenset({"system:masters"}))
    assert [reviewer.may(everywhere, wanted) for wanted in asked] == [True] * 4


def test_a_page_of_three_hundred_namespaces_is_known_in_one_go(
    heads_api: ClientApi, admin: Connection, namespace: str
) -> None:
    user = user_of(heads_api, admin, namespace)
    allow(admin, namespace, ["get"], user)
    rights = RightsOfUser(AccessReviews(ApiAccessReviewer(heads_api), within_s=PATIENCE_S), user)
    names = [namespace, *(f"team-{number}" for number in range(MANY - 1))]
    assert rights.readable(names) == (frozenset({namespace}), 0)


def test_a_head_without_the_right_to_ask_shows_nothing_and_says_what_it_lacks(
    kube: KubeTarget, namespace: str, tmp_path: Path
) -> None:
    user = ReviewedUser("ada", frozenset())
    with installed(kube, namespace, tmp_path, OPEN) as release:
        release.lacks.add("head: create subjectaccessreviews.authorization.k8s.io")
        head = ApiAccessReviewer(open_api(release.kubeconfig("head"), timeout_s=60))
        with pytest.raises(ReviewUnavailableError) as refused:
            head.may(user, AccessRight(READ, namespace))
    assert "subjectaccessreviews.authorization.k8s.io" in str(refused.value)
