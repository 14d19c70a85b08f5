"""Incidents as the notifier tells them, from the coordinator's HTTP API; what has not changed is not read again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlencode

from tidegauge.cluster import client
from tidegauge.cluster.wire import from_wire
from tidegauge.core.actions import DecisionRecord
from tidegauge.core.incidents import Incident, IncidentChange
from tidegauge.core.memory_history import MemoryPoint
from tidegauge_exporter.notify.ports import RetryLaterError
from tidegauge_exporter.notify.values import Story

log = logging.getLogger(__name__)

AGAIN_AFTER_S = 5.0
ANSWER_TIMEOUT_S = 20.0


class _Known(NamedTuple):
    mark: str
    """What the service said of it when its story was read."""
    story: Story


class ApiFeed:
    """``notify.ports.StoryFeed``. ``api_url`` is asked each time: a coordinator that was restarted may have another."""

    def __init__(self, api_url: Callable[[], str | None]) -> None:
        self._api_url = api_url
        self._known: dict[int, _Known] = {}
        """By number of the incident."""

    def stories(self, *, closed_since_unix_s: float) -> Sequence[Story]:
        """Newest first. Raises ``RetryLaterError``."""
        marks: dict[str, str] = self._ask(f"/api/v1/incident-marks?since={max(int(closed_since_unix_s), 0)}")["marks"]
        self._known = {int(number): self._story_of(int(number), mark) for number, mark in marks.items()}
        return [told.story for told in self._known.values()]

    def story(self, number: int) -> Story:
        """As it is now. Raises ``RetryLaterError``."""
        page = self._ask(f"/api/v1/incident?number={number}")
        try:
            incident = from_wire(Incident, page["incident"])
            history = tuple(from_wire(IncidentChange, line) for line in page["history"])
            decisions = tuple(from_wire(DecisionRecord, line) for line in page["decisions"])
        except (KeyError, ValueError) as error:
            raise RetryLaterError(f"the service tells incident {number} in another form: {error}") from error
        return Story(incident, history, decisions, self._memory(incident))

    def _story_of(self, number: int, mark: str) -> _Known:
        known = self._known.get(number)
        return known if known is not None and known.mark == mark else _Known(mark, self.story(number))

    def _memory(self, incident: Incident) -> tuple[MemoryPoint, ...]:
        """Of the rank to look at first. A picture less is no reason to say nothing."""
        if not incident.findings:
            return ()
        job, rank = incident.key.job, incident.findings[0].rank
        query = urlencode({"job_id": job.job_id, "attempt": job.attempt, "uid": job.uid, "rank": rank})
        try:
            ranks = self._ask(f"/api/v1/memory?{query}")["ranks"]
            return tuple(from_wire(MemoryPoint, point) for line in ranks for point in line["points"])
        except (RetryLaterError, KeyError, TypeError, ValueError) as error:
            log.debug("no memory of incident %d: %s", incident.number, error)
            return ()

    def _ask(self, path: str) -> dict[str, Any]:
        url = self._api_url()
        if url is None:
            raise RetryLaterError("the coordinator is not there", after_s=AGAIN_AFTER_S)
        try:
            return client.get(url, path, timeout_s=ANSWER_TIMEOUT_S)
        except client.ApiError as error:
            raise RetryLaterError(str(error), after_s=AGAIN_AFTER_S) from error
