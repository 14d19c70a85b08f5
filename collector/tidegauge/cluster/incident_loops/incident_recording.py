"""Writes how the memory of incidents' ranks went into the database: when an incident opens, once a minute while it is
open, and when it closes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.job_records.incident_curves import incident_curves
from tidegauge.core.job_records.memory import HistoryOf, RankMemory
from tidegauge.core.views import JobView

log = logging.getLogger(__name__)

KEEP_UP_S = 60.0
"""A coordinator that is killed loses so much of the curves."""
MAX_INCIDENTS_A_TICK = 12
"""Of 16 ranks each a sixth of a second: the loop of incidents waits. More than 700 open ones are written less often."""


class IncidentMemory(Protocol):
    """The methods of ``store.IncidentStore`` that are called here. They raise ``AuditError``."""

    def save_memory(self, curves: Mapping[int, Sequence[RankMemory]], /) -> None: ...

    def memory(self, number: int, /) -> Sequence[RankMemory]: ...


class IncidentRecorder:
    """For one thread: ``tick`` once a second, after the loop of incidents. ``open_incidents`` gives those of now."""

    def __init__(
        self,
        open_incidents: Callable[[], Sequence[Incident]],
        jobs: Callable[[], Sequence[JobView]],
        records: IncidentMemory,
        *,
        history_of: HistoryOf,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._open_incidents = open_incidents
        self._jobs = jobs
        self._records = records
        self._history_of = history_of
        self._monotonic_s = monotonic_s
        self._known: dict[int, Incident] = {}
        """Those that are open, and those that have closed since they were written last."""
        self._due_s: dict[int, float] = {}
        """When each is written next (monotonic)."""
        self.problem: str | None = None
        """Why nothing is recorded."""

    def tick(self) -> None:
        """Write what is due; never raises ``AuditError``."""
        try:
            self._tick()
            self.problem = None
        except AuditError as error:
            if self.problem is None:
                log.error("no memory of incidents is recorded: %s", error)
            self.problem = str(error)

    def _tick(self) -> None:
        now_s = self._monotonic_s()
        is_open = {incident.number: incident for incident in self._open_incidents()}
        for number in self._known.keys() - is_open.keys():
            self._due_s[number] = float("-inf")
        self._known |= is_open
        due = [number for number in self._known if self._due_s.get(number, now_s) <= now_s]
        some = sorted(due, key=lambda number: (self._due_s.get(number, now_s), number))[:MAX_INCIDENTS_A_TICK]
        if some:
            self._write(some)
        for number in some:
            self._due_s[number] = now_s + KEEP_UP_S
            if number not in is_open:
                del self._known[number], self._due_s[number]

    def _write(self, numbers: Sequence[int]) -> None:
        views = {view.key: view for view in self._jobs() if view.ranks}
        news: dict[int, Sequence[RankMemory]] = {}
        for number in numbers:
            incident = self._known[number]
            try:
                stored = tuple(self._records.memory(number))
            except AuditError as error:  # of one incident that cannot be read: the others are not to wait for it
                log.warning("the memory of incident %d is not written: %s", number, error)
                continue
            curves = incident_curves(incident, views.get(incident.key.job), self._history_of, stored)
            if curves != stored:
                news[number] = curves
        if news:
            self._records.save_memory(news)
