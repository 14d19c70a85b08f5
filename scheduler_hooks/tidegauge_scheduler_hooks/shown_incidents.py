"""Has schedulers that can show incidents in objects of their own do so: in the background, each state once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol, runtime_checkable

from tidegauge.core.incidents import Incident
from tidegauge.core.incidents.actions import AuditError, DecisionRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.one_call_each import OneCallEach
from tidegauge_scheduler_hooks.ports import PermanentError, SchedulerError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 5.0
CLOSED_SINCE_S = 3600.0
"""Incidents that closed while there was no head are shown as closed when there is one again within this time."""
REFUSED_FOR_S = 600.0
"""After a refusal (no definition, no right): somebody has to change something first."""
MAX_AT_ONCE = 50
"""Incidents a look: each is a request or two."""


@runtime_checkable
class ShowsIncidents(Protocol):
    """A scheduler with objects of its own for incidents."""

    def show_incident(self, incident: Incident, records: Sequence[DecisionRecord], job: JobView | None) -> None:
        """Write the incident as it is now; ``records``: its decisions, oldest first; ``job``: ``None`` once nobody
        knows it. The same again changes nothing. Raises ``SchedulerError``."""


class KeptIncidents(Protocol):
    """The methods of ``store.IncidentStore`` that are called here. They raise ``AuditError``."""

    def incidents(self, *, since_s: float) -> Sequence[Incident]:
        """Those that are open, or were closed at or after that time."""

    def incident(self, number: int, /) -> Incident | None: ...


class _Due(NamedTuple):
    incident: Incident
    records: Sequence[DecisionRecord]
    job: JobView | None


class ShownIncidents:
    """A ``RecordWriter``; ``tick`` for one thread. ``submit`` is that of ``OneCallEach``.

    ``open_incidents`` gives those of now, from memory; the database, ``kept``, is read for those that have closed.
    ``records_of`` gives the decisions about one and raises ``AuditError``."""

    def __init__(
        self,
        schedulers: Mapping[str, object],
        open_incidents: Callable[[], Sequence[Incident]],
        kept: KeptIncidents,
        records_of: Callable[[int], Sequence[DecisionRecord]],
        jobs: Callable[[], Sequence[JobView]],
        *,
        submit: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: port for name, port in schedulers.items() if isinstance(port, ShowsIncidents)}
        self._open_incidents = open_incidents
        self._kept = kept
        self._records_of = records_of
        self._jobs = jobs
        self._calls = OneCallEach(submit)
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._next_s = float("-inf")
        self._lock = threading.Lock()
        self._known: dict[int, Incident] | None = None
        """Those that are open, and those that have closed and are not shown so yet; ``None``: nothing was read."""
        self._shown: dict[int, tuple[object, ...]] = {}
        """What was written of each."""
        self._refused_until_s: dict[str, float] = {}
        self._why: dict[str, str] = {}

    @property
    def problem(self) -> str | None:
        """Never: the incidents are in the database, and this is a view of them."""
        return None

    def tick(self) -> None:
        """Look every few seconds at what is to be written; returns at once."""
        now_s = self._monotonic_s()
        if not self._schedulers or now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_EVERY_S
        try:
            due = self._due(now_s)
        except AuditError as error:
            log.info("incidents are not shown while the database cannot be read: %s", error)
            return
        for name, some in due.items():
            self._calls.submit(name, partial(self._show, name, some))

    def _due(self, now_s: float) -> dict[str, list[_Due]]:
        with self._lock:
            refused = {name for name, until_s in self._refused_until_s.items() if now_s < until_s}
        free = {name for name in self._schedulers if self._calls.is_free(name) and name not in refused}
        known = self._look()
        views = {view.key: view for view in self._jobs() if view.ranks}
        due: dict[str, list[_Due]] = {}
        for incident in list(known.values()):
            name = incident.scheduler
            if name is None or name not in free or len(due.get(name, ())) >= MAX_AT_ONCE:
                continue
            records = self._records_of(incident.number)
            with self._lock:
                is_shown = self._shown.get(incident.number) == _what_is_shown(incident, records)
                if is_shown and not incident.is_open:  # nothing more will come of it
                    del known[incident.number], self._shown[incident.number]
            if not is_shown:
                due.setdefault(name, []).append(_Due(incident, records, views.get(incident.key.job)))
        return due

    def _look(self) -> dict[int, Incident]:
        """Those that are open, and those that have closed since they were shown."""
        if self._known is None:
            known = {one.number: one for one in self._kept.incidents(since_s=self._now_s() - CLOSED_SINCE_S)}
        else:
            known = dict(self._known)
        is_open = {one.number: one for one in self._open_incidents()}
        for number in [one.number for one in known.values() if one.is_open and one.number not in is_open]:
            closed = self._kept.incident(number)
            if closed is None:
                del known[number]
            else:
                known[number] = closed
        known = {number: one for number, one in (known | is_open).items() if one.scheduler in self._schedulers}
        with self._lock:
            for number in self._shown.keys() - known.keys():
                del self._shown[number]
        self._known = known
        return known

    def _show(self, name: str, due: Sequence[_Due]) -> None:
        for one in due:
            try:
                self._schedulers[name].show_incident(*one)
            except PermanentError as error:
                self._refused(name, str(error))
                return
            except SchedulerError as error:
                log.info("%s does not show incident %d yet: %s", name, one.incident.number, error)
                return
            except Exception:
                # What is odd about one incident must not hide the others; it is not tried again until it changes.
                log.exception("the adapter for %s could not show incident %d", name, one.incident.number)
            with self._lock:
                self._shown[one.incident.number] = _what_is_shown(one.incident, one.records)
        with self._lock:
            self._why.pop(name, None)

    def _refused(self, name: str, why: str) -> None:
        with self._lock:
            is_news, self._why[name] = self._why.get(name) != why, why
            self._refused_until_s[name] = self._monotonic_s() + REFUSED_FOR_S
        if is_news:
            log.info("%s shows no incidents: %s", name, why)


def _what_is_shown(incident: Incident, records: Sequence[DecisionRecord]) -> tuple[object, ...]:
    """Without what changes by itself while nothing new is known."""
    last = records[-1] if records else None
    state = None if last is None else (last.decision.decision_id, last.status, last.outcome, last.detail)
    return replace(incident, snapshots=(), reports=()), state
