"""The list and watch functions of a ``SharedInformer``, for one kind in one namespace or all, with pauses. The informer
repeats a failed request at once, for ever, with a traceback each time; so a feed never shows it a failure, but takes
longer."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from tidegauge_scheduler_hooks.kubernetes.client.api import ClientApi, Listing
from tidegauge_scheduler_hooks.kubernetes.client.errors import ApiCall, ExpiredError
from tidegauge_scheduler_hooks.kubernetes.ports import ObjectNotFoundError, Resource
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

logger = logging.getLogger(__name__)

_CHANCE = random.Random()  # an own one: threads must not disturb what others drew by a seed
WATCH_S = 60.0
"""The time for which the server keeps one watch open; silent for 15 s more, the connection is dead. client-go takes 5
to 10 minutes; at a minute a half-open watch is noticed in time for ``MAX_AWAY_S``, for one request a minute."""
STEADY_S = 5.0
"""A watch that ended sooner counts as a failure: the next one waits."""
MAX_AWAY_S = 60.0
"""After this time without a watch a store is no longer up to date."""
REFUSED_PAUSE_S = 60.0
"""After a refusal: no right, no such kind. Both may change while this runs."""
QUIET_FAILURES = 3
"""Failures in a row without a log line: an API server that restarts is no news."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 30.0


def pause_s(failures: int, *, refused: bool, spread: float) -> float:
    """The pause before the next try, after this many failures in a row. ``spread`` from 0 to 1 spreads many clients."""
    if failures == 0:
        return 0.0
    if refused:
        return REFUSED_PAUSE_S * (0.75 + spread / 2)
    return float(min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(failures - 1, 16))) * (0.5 + spread / 2)


class ClosedError(Exception):
    """The feed is closed; the informer is about to end."""


class Feed:
    """One feed. ``read`` is for the informer; everything else is for other threads, and never blocks."""

    def __init__(
        self,
        api: ClientApi,
        resource: Resource,
        namespace: str | None,
        *,
        label_selector: str | None,
        resync_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._label_selector = label_selector
        self._resync_s = resync_s
        self._clock = clock
        self._ask = ApiCall("watch", resource, namespace)
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._failures = 0
        """Failed requests in a row."""
        self._short_watches = 0
        """Watches in a row that ended at once."""
        self._error: SchedulerError | None = None
        """The last error, until a watch is open."""
        self._said = False
        self._listed = False
        self._listed_at_s = 0.0
        self._away_since_s: float | None = clock()

    def read(self, *, watch: bool = False, resource_version: str = "0", _preload_content: bool = True) -> Any:
        """The list function of an informer: a ``Listing``, or a stream of events with ``watch``.

        The client's ``Watch`` looks for the next line: without it no version is kept to go on from.

        :rtype: object
        """
        return self._watch(resource_version) if watch else self._list()

    @property
    def synced(self) -> bool:
        away_since_s = self._away_since_s
        return self._listed and (away_since_s is None or self._clock() - away_since_s <= MAX_AWAY_S)

    @property
    def current(self) -> bool:
        return self._listed and self._away_since_s is None

    @property
    def kind_missing(self) -> bool:
        error = self._error
        return isinstance(error, ObjectNotFoundError) and error.kind_missing

    @property
    def problem(self) -> str | None:
        if self.synced:
            return None
        error = self._error
        return f"{self._ask}: no answer from the API server yet" if error is None else str(error)

    def close(self) -> None:
        """End a pause, and a watch that is being read."""
        self._closed.set()
        with self._lock:
            if self._stream is not None:
                self._stream.wake()

    def interrupted(self, error: object) -> None:
        """Log the exception that ended the informer's watch, where it was no clean end."""
        if isinstance(error, ApiException) and error.status != HTTPStatus.GONE:
            logger.warning("%s: the API server ended the watch: %s", self._ask, error.reason)
        elif isinstance(error, Exception) and not isinstance(error, (ApiException, HTTPError, ClosedError)):
            logger.error("%s failed; retrying", self._ask, exc_info=error)

    def ended(self, lasted_s: float) -> None:
        """The stream that was opened last is over."""
        with self._lock:
            self._stream = None
        self._away_since_s = self._clock()
        self._short_watches = self._short_watches + 1 if lasted_s < STEADY_S else 0

    def _list(self) -> Listing:
        while True:
            self._pause()
            try:
                listing = self._api.listing(self._resource, self._namespace, label_selector=self._label_selector)
            except SchedulerError as error:
                self._failed(error)
            else:
                self._listed_at_s = self._clock()
                self._failures = 0
                return listing

    def _watch(self, version: str) -> _Stream:
        """Raises ``ApiException`` with 410 where the informer is to list again."""
        self._listed = True  # the informer watches once it has taken in what it listed
        while True:
            self._pause()
            if self._clock() - self._listed_at_s >= self._resync_s:
                raise _list_again("time for a full list")
            for_s = WATCH_S * _CHANCE.uniform(0.75, 1.0)
            try:
                response = self._api.open_watch(
                    self._resource, self._namespace, version, label_selector=self._label_selector, for_s=for_s
                )
            except ExpiredError as error:
                self._short_watches += 1
                raise _list_again(str(error)) from error
            except SchedulerError as error:
                self._failed(error)
            else:
                return self._opened(response)

    def _opened(self, response: BaseHTTPResponse) -> _Stream:
        stream = _Stream(response, self, self._clock)
        with self._lock:
            self._stream = stream
        if self._closed.is_set():
            stream.close()
            raise ClosedError
        if self._said:
            logger.info("%s: works again", self._ask)
        self._away_since_s, self._error, self._said, self._failures = None, None, False, 0
        return stream

    def _failed(self, error: SchedulerError) -> None:
        self._failures += 1
        if isinstance(error, PermanentError):
            if str(error) != str(self._error):
                level = logging.INFO if isinstance(error, ObjectNotFoundError) else logging.WARNING
                logger.log(level, "%s; retrying every minute", error)
                self._said = True
        elif self._failures == QUIET_FAILURES + 1:
            logger.warning("%s; retrying until it works", error)
            self._said = True
        self._error = error

    def _pause(self) -> None:
        refused = self._failures > 0 and isinstance(self._error, PermanentError)
        in_a_row = self._failures + self._short_watches
        if self._closed.wait(pause_s(in_a_row, refused=refused, spread=_CHANCE.random())):
            raise ClosedError


class _Stream:
    """The parts of a watch's answer that the client's ``Watch`` uses."""

    status = HTTPStatus.OK.value

    def __init__(self, response: BaseHTTPResponse, feed: Feed, clock: Callable[[], float]) -> None:
        self._response = response
        self._feed = feed
        self._clock = clock
        self._opened_s = clock()

    def stream(self, amt: int | None = None, decode_content: bool | None = None) -> Iterator[bytes]:
        return self._response.stream(amt, decode_content)

    def close(self) -> None:
        self._response.close()
        self._feed.ended(self._clock() - self._opened_s)

    def release_conn(self) -> None:
        self._response.release_conn()

    def wake(self) -> None:
        """Have a blocked read return. The socket may be gone already, or its TLS."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()


def _list_again(reason: str) -> ApiException:
    return ApiException(status=HTTPStatus.GONE.value, reason=reason)
