"""Reads incidents for the notifier from the coordinator's HTTP API; unchanged ones are not read again."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tidegauge.cluster.api import client
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.incidents.actions import DecisionRecord
from tidegauge.core.incidents.acts import PersonAct
from tidegauge.core.memory_history import MemoryPoint, PackedPoints
from tidegauge.core.wire import from_wire
from tidegauge_exporter.messages.values import Story
from tidegauge_exporter.notify.ports import RetryLaterError

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 5.0
ANSWER_TIMEOUT_S = 20.0
READ_FOR_S = 10.0
"""In one round; the rest of a thousand new incidents is read in the next ones. One incident of a thousand ranks takes
the coordinator 0.1 s and more."""
MAX_UNREADABLE = 3
"""Incidents that cannot be read in one round, before it is given up."""


class _Known(NamedTuple):
    mark: str
    """What the service said of it when its story was read."""
    story: Story


class ApiFeed:
    """A ``notify.ports.StoryFeed``. Each request calls ``api_url``: a restarted coordinator may have moved."""

    def __init__(self, api_url: Callable[[], str | None], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._api_url = api_url
        self._monotonic_s = monotonic_s
        self._known: dict[int, _Known] = {}
        """By number of the incident."""
        self._odd: set[int] = set()
        """Incidents that could not be read the last time."""
        self._unread_since_unix_s = math.inf
        """Since when closed incidents are asked for until all were read: none is to be forgotten over a bad moment."""

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        """Stories, open incidents first, then the newest. Of an incident that cannot be read the last known story is
        given, or none: one broken incident must not silence all. Raises ``RetryLaterError``."""
        since_unix_s = max(int(min(closed_since_unix_s, self._unread_since_unix_s)), 0)
        asked: dict[str, str] = self._ask(f"/api/v1/incident-marks?since={since_unix_s}")["marks"]
        marks = {int(number): mark for number, mark in asked.items()}
        self._known = {number: told for number, told in self._known.items() if number in marks}
        self._unread_since_unix_s = since_unix_s
        if self._read(marks):
            self._unread_since_unix_s = math.inf
        return [self._known[number].story for number in marks if number in self._known]

    def _read(self, marks: Mapping[int, str]) -> bool:
        """Read new and changed incidents, those last that failed the last time; false if time ran out. Raises
        ``RetryLaterError`` once too many fail."""
        odd, self._odd, failed = self._odd, self._odd & marks.keys(), 0
        ends_s = self._monotonic_s() + READ_FOR_S
        known = {number: told.mark for number, told in self._known.items()}
        news = [number for number, mark in marks.items() if known.get(number) != mark]
        for number in sorted(news, key=lambda one: (one in odd, one in self._known)):
            if self._monotonic_s() >= ends_s:
                return False
            try:
                self._known[number] = _Known(marks[number], self.story(number))
            except RetryLaterError as error:
                failed += 1
                if number not in odd:
                    log.warning("incident %d cannot be read; retrying: %s", number, error)
                self._odd.add(number)
                if failed < MAX_UNREADABLE:
                    continue
                if number not in odd:
                    raise  # it may be the service; if not, these are tried last from now on
                return True
            self._odd.discard(number)
        return True

    def story(self, number: int) -> Story:
        """The present story of an incident. Raises ``RetryLaterError``."""
        page = self._ask(f"/api/v1/incident?number={number}")
        try:
            incident = from_wire(Incident, page["incident"])
            history = tuple(from_wire(IncidentChange, line) for line in page["history"])
            decisions = tuple(from_wire(DecisionRecord, line) for line in page["decisions"])
            acts = tuple(from_wire(PersonAct, line) for line in page.get("acts", ()))
        except (KeyError, ValueError) as error:
            raise RetryLaterError(f"unexpected form of incident {number} from the service: {error}") from error
        return Story(incident, history, decisions, PackedPoints(self._memory(incident)), acts)

    def _memory(self, incident: Incident) -> tuple[MemoryPoint, ...]:
        """The history of the rank to look at first; empty if it cannot be read: the message then has no chart."""
        if not incident.findings:
            return ()
        query = urlencode({"incident": incident.number, "rank": incident.findings[0].rank})
        try:
            ranks = self._ask(f"/api/v1/memory?{query}")["ranks"]
            return tuple(from_wire(MemoryPoint, point) for line in ranks for point in line["points"])
        except (RetryLaterError, KeyError, TypeError, ValueError) as error:
            log.debug("no memory figures of incident %d: %s", incident.number, error)
            return ()

    def _ask(self, path: str) -> dict[str, Any]:
        url = self._api_url()
        if url is None:
            raise RetryLaterError("the coordinator is not available", after_s=AGAIN_AFTER_S)
        try:
            return client.get(url, path, timeout_s=ANSWER_TIMEOUT_S)
        except client.ApiError as error:
            raise RetryLaterError(str(error), after_s=AGAIN_AFTER_S) from error
