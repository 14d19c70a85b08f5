"""What users of a Kubernetes cluster may do there: the port of the API server's ``SubjectAccessReview``, and a memory
before it, so that a list of jobs in hundreds of namespaces is not hundreds of questions.

``tidegauge_scheduler_hooks.kubernetes.access_reviewer`` implements the port.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple, Protocol

from tidegauge.http.access import RightsUnknownError
from tidegauge.http.token_reviews import ReviewedUser, ReviewUnavailableError

YES_KEPT_S = 60.0
"""For which a right counts after it was asked for, as a token does: it may have been taken back since."""
NO_KEPT_S = 300.0
"""Longer, as it can only hide something: most people have no rights in most namespaces, and each is asked about."""
AWAY_S = 5.0
"""After an API server did not answer nobody asks it again for so long."""
WITHIN_S = 2.0
"""How long a page waits for answers. What comes later is there for the next one."""
MAX_AT_ONCE = 8
MAX_WAITING = 2000
"""Questions in the queue, of all users; further ones are asked when somebody needs them again."""
MAX_KEPT = 100_000
"""Answers: 300 namespaces for 300 people. The oldest are forgotten."""
UNAVAILABLE = (
    "the Kubernetes API server cannot say just now what you may read: try again, or use another way in; the "
    "coordinator's log says why"
)
READ, CHANGE = "get", "patch"
"""Verbs on ``jobs.batch``, for what a user sees, and for acts on incidents: the role ``view`` has the first, ``edit``
both."""
METRICS_PATH = "/metrics"


class AccessRight(NamedTuple):
    """What somebody may or may not do: ``verb`` on ``jobs.batch`` in ``namespace`` (empty: in all), or on ``path``."""

    verb: str
    namespace: str = ""
    path: str = ""


READ_ALL, READ_METRICS = AccessRight(READ), AccessRight("get", path=METRICS_PATH)


class AccessReviewer(Protocol):
    """Asks what a user may do. Thread-safe; every call ends within seconds."""

    def may(self, user: ReviewedUser, wanted: AccessRight) -> bool:
        """Raises ``ReviewUnavailableError``."""


_Asked = tuple[ReviewedUser, AccessRight]


class AccessReviews:
    """Answers of an ``AccessReviewer``, remembered; the same question is on its way once. Thread-safe."""

    def __init__(
        self, reviewer: AccessReviewer, *, within_s: float = WITHIN_S, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._reviewer = reviewer
        self._within_s = within_s
        self._monotonic_s = monotonic_s
        self._kept: OrderedDict[_Asked, tuple[bool, float]] = OrderedDict()
        """With the time until which it counts."""
        self._on_its_way: dict[_Asked, Future[None]] = {}
        self._away_until_s = 0.0
        self._lock = threading.Lock()
        self._workers = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="tidegauge-rights")

    def answers(self, user: ReviewedUser, wanted: Iterable[AccessRight]) -> Mapping[AccessRight, bool]:
        """What is known within ``within_s``: what was asked for lately at once, the rest is asked side by side."""
        asked = [(user, one) for one in wanted]
        with self._lock:
            waited_for = [future for one in asked if (future := self._future(one)) is not None]
        for future in wait(waited_for, timeout=self._within_s).done:
            future.result()  # raises what no reviewer should
        now_s = self._monotonic_s()
        with self._lock:
            return {one[1]: kept[0] for one in asked if (kept := self._kept.get(one)) is not None and now_s < kept[1]}

    def _future(self, asked: _Asked) -> Future[None] | None:
        """Of a question that has to be waited for."""
        now_s = self._monotonic_s()
        kept = self._kept.get(asked)
        if kept is not None and now_s < kept[1]:
            return None
        if asked not in self._on_its_way:
            if now_s < self._away_until_s or len(self._on_its_way) >= MAX_WAITING:
                return None
            self._on_its_way[asked] = self._workers.submit(self._ask, asked)
        return self._on_its_way[asked]

    def _ask(self, asked: _Asked) -> None:
        answer, asked_s = None, self._monotonic_s()
        try:
            if asked_s >= self._away_until_s:  # else it went away while this was waiting
                answer = self._reviewer.may(*asked)
        except ReviewUnavailableError:
            self._away_until_s = self._monotonic_s() + AWAY_S
        finally:
            with self._lock:
                del self._on_its_way[asked]
                if answer is not None:
                    self._kept.pop(asked, None)
                    self._kept[asked] = answer, asked_s + (YES_KEPT_S if answer else NO_KEPT_S)
                    if len(self._kept) > MAX_KEPT:
                        self._kept.popitem(last=False)


class RightsOfUser:
    """``NamespaceRights`` of one user."""

    def __init__(self, reviews: AccessReviews, user: ReviewedUser) -> None:
        self._reviews = reviews
        self._user = user

    def reads_all(self) -> bool:
        return self._may(READ_ALL)

    def reads_metrics(self) -> bool:
        return self._may(READ_METRICS)

    def may_change(self, namespace: str) -> bool:
        return self._may(AccessRight(CHANGE, namespace))

    def readable(self, namespaces: Collection[str]) -> tuple[frozenset[str], int]:
        told = self._reviews.answers(self._user, [AccessRight(READ, one) for one in namespaces])
        if namespaces and not told:
            raise RightsUnknownError(UNAVAILABLE)
        return frozenset(wanted.namespace for wanted, may in told.items() if may), len(namespaces) - len(told)

    def _may(self, wanted: AccessRight) -> bool:
        told = self._reviews.answers(self._user, [wanted]).get(wanted)
        if told is None:
            raise RightsUnknownError(UNAVAILABLE)
        return told
