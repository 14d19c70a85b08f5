"""``AccessReviewer`` by the API server's SubjectAccessReview.

https://kubernetes.io/docs/reference/kubernetes-api/authorization-resources/subject-access-review-v1/
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegauge.http.namespace_rights import AccessRight
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError
from tidegauge_scheduler_hooks.kubernetes.ports import ACCESS_REVIEWS, JOBS
from tidegauge_scheduler_hooks.kubernetes.reviews import ApiReviews, ReviewApi

QPS, BURST = 100.0, 300
"""Of all reviews: a page waits for one of each namespace. The API server has its own limits for each client."""
NO_RIGHT = (
    "its role lacks `create` on subjectaccessreviews.authorization.k8s.io, which the chart's webAccess gives, and the "
    "ClusterRole system:auth-delegator"
)


class ApiAccessReviewer:
    """Thread-safe."""

    def __init__(self, api: ReviewApi, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._reviews = ApiReviews(
            api, ACCESS_REVIEWS, problem="rights in Kubernetes are not known", no_right=NO_RIGHT,
            monotonic_s=monotonic_s,
        )  # fmt: skip

    def may(self, user: ReviewedUser, wanted: AccessRight) -> bool:
        status = self._reviews.status(_spec(user, wanted))
        if not isinstance(status, dict):
            raise ReviewUnavailableError("the answer has no status")
        # An authorizer that says no beside one that says yes has the last word.
        return status.get("allowed") is True and status.get("denied") is not True


def _spec(user: ReviewedUser, wanted: AccessRight) -> dict[str, Any]:
    spec: dict[str, Any] = {"user": user.username, "groups": sorted(user.groups)}
    if user.uid:
        spec["uid"] = user.uid
    if user.extra:
        spec["extra"] = {key: list(values) for key, values in user.extra}
    if wanted.path:
        return {**spec, "nonResourceAttributes": {"path": wanted.path, "verb": wanted.verb}}
    resource = {"group": JOBS.group, "version": JOBS.version, "resource": JOBS.plural, "verb": wanted.verb}
    return {**spec, "resourceAttributes": {**resource, "namespace": wanted.namespace}}
