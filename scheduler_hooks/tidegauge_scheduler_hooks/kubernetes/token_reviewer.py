"""``TokenReviewer`` by the API server's TokenReview.

https://kubernetes.io/docs/reference/kubernetes-api/authentication-resources/token-review-v1/
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError
from tidegauge.rate_limited_log import FewLines
from tidegauge_scheduler_hooks.kubernetes.ports import TOKEN_REVIEWS, ForbiddenError, Object, Resource
from tidegauge_scheduler_hooks.ports import SchedulerError

log = logging.getLogger(__name__)

TIMEOUT_S = 5.0
"""Of a review: somebody waits for a page."""
MAX_NAME_CHARS = 512
TOKEN_ID = "authentication.kubernetes.io/credential-id"
MAX_GROUPS, MAX_EXTRA = 1000, 100
NO_RIGHT = (
    "its role lacks `create` on tokenreviews.authentication.k8s.io, which the chart's webAccess.kubernetesLogin gives, "
    "and the ClusterRole system:auth-delegator"
)


class ReviewApi(Protocol):
    """What is needed of ``client.api.ClientApi``."""

    def review(self, resource: Resource, body: Object) -> Object:
        """Raises ``SchedulerError``."""


class ApiTokenReviewer:
    """Reviews tokens for ``audience``; ``None``: for the API server's own. Thread-safe."""

    def __init__(
        self, api: ReviewApi, *, audience: str | None, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._api = api
        self._audience = audience
        self._monotonic_s = monotonic_s
        self._lines = FewLines(log)

    def review(self, token: str) -> ReviewedUser | None:
        spec: dict[str, Any] = {"token": token}
        if self._audience is not None:
            spec["audiences"] = [self._audience]
        body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": spec}
        try:
            answer = self._api.review(TOKEN_REVIEWS, body)
        except SchedulerError as error:
            why = f"{error}; {NO_RIGHT}" if isinstance(error, ForbiddenError) else str(error)
            self._lines.say(logging.ERROR, "tokens of Kubernetes cannot be checked: %s", why, now_s=self._monotonic_s())
            raise ReviewUnavailableError(why) from error
        return _reviewed(answer.get("status"), self._audience)


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
