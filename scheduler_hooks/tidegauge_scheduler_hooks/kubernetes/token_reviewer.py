"""``TokenReviewer`` by the API server's TokenReview.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegauge.http.token_reviews import ReviewedUser
from tidegauge_scheduler_hooks.kubernetes.ports import TOKEN_REVIEWS
from tidegauge_scheduler_hooks.kubernetes.reviews import ApiReviews, ReviewApi

TIMEOUT_S = 5.0
"""Of a review: somebody waits for a page."""
MAX_NAME_CHARS = 512
TOKEN_ID = "authentication.kubernetes.io/credential-id"
MAX_GROUPS, MAX_EXTRA = 1000, 100
NO_RIGHT = (
    "its role lacks `create` on tokenreviews.authentication.k8s.io, which the chart's webAccess.kubernetesLogin gives, "
    "and the ClusterRole system:auth-delegator"
)


class ApiTokenReviewer:
    """Reviews tokens for ``audience``; ``None``: for the API server's own. Thread-safe."""

    def __init__(
        self, api: ReviewApi, *, audience: str | None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._reviews = ApiReviews(
            api, TOKEN_REVIEWS, problem="tokens of Kubernetes cannot be checked", no_right=NO_RIGHT,
            monotonic_s=monotonic_s,
        )  # fmt: skip
        self._audience = audience

    def review(self, token: str) -> ReviewedUser | None:
        spec: dict[str, Any] = {"token": token}
        if self._audience is not None:
            spec["audiences"] = [self._audience]
        return _reviewed(self._reviews.status(spec), self._audience)


def _reviewed(status: Any, audience: str | None) -> ReviewedUser | None:
    """Nobody where anything of the answer is not as it should be."""
    if not isinstance(status, dict) or status.get("authenticated") is not True:
        return None
    # A server that knows no audiences answers with none: then it may be anybody's token.
    if audience is not None and audience not in (status.get("audiences") or ()):
        return None
    user = status.get("user")
    if not isinstance(user, dict):
        return None
    name, groups, uid = user.get("username"), user.get("groups") or (), user.get("uid")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS or not isinstance(groups, list | tuple):
        return None
    return ReviewedUser(name, frozenset(_texts(groups)), uid if isinstance(uid, str) else "", _extra(user.get("extra")))


def _extra(told: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """In one order, and without what is another of each token: the same user is to be one user."""
    if not isinstance(told, dict):
        return ()
    return tuple((key, tuple(_texts(values))) for key, values in sorted(told.items())[:MAX_EXTRA] if key != TOKEN_ID)


def _texts(values: Any) -> list[str]:
    known = values[:MAX_GROUPS] if isinstance(values, list | tuple) else ()
    return [value for value in known if isinstance(value, str)]
