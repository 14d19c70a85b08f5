"""Reviews: questions to the API server that it answers in the status of an object that it does not keep."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from tidegauge.http.token_reviews import ReviewUnavailableError
from tidegauge.rate_limited_log import FewLines
from tidegauge_scheduler_hooks.kubernetes.ports import ForbiddenError, Object, Resource
from tidegauge_scheduler_hooks.ports import SchedulerError

log = logging.getLogger(__name__)


class ReviewApi(Protocol):
    """What is needed of ``client.api.ClientApi``."""

    def review(self, resource: Resource, body: Object) -> Object:
        """Raises ``SchedulerError``."""


class ApiReviews:
    """Reviews of one kind. ``problem``: what an administrator reads where there is no answer, before the reason;
    ``no_right``: what is added where the role is what is missing. Thread-safe."""

    def __init__(
        self,
        api: ReviewApi,
        resource: Resource,
        *,
        problem: str,
        no_right: str,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._resource = resource
        self._problem = problem
        self._no_right = no_right
        self._monotonic_s = monotonic_s
        self._lines = FewLines(log)

    def status(self, spec: Mapping[str, Any]) -> Any:
        """The status of the answer, as it came. Raises ``ReviewUnavailableError``."""
        body = {"apiVersion": self._resource.api_version, "kind": self._resource.kind, "spec": spec}
        try:
            answer = self._api.review(self._resource, body)
        except SchedulerError as error:
            why = f"{error}; {self._no_right}" if isinstance(error, ForbiddenError) else str(error)
            self._lines.say(logging.ERROR, "%s: %s", self._problem, why, now_s=self._monotonic_s())
            raise ReviewUnavailableError(why) from error
        return answer.get("status")
