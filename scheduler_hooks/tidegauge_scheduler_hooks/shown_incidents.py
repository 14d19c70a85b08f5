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


class _Due(NamedTuple):
    incident: Incident
    records: Sequence[DecisionRecord]
    job: JobView | None


class ShownIncidents:
    """A ``RecordWriter``; ``tick`` for one thread. ``submit`` is that of ``OneCallEach``.

    ``changed`` gives incidents that are open, or were closed at or after a time; ``records_of`` the decisions about
    one. Both raise ``AuditError``."""

    def __init__(
        self,
        schedulers: Mapping[str, object],
        changed: Callable[[float], Sequence[Incident]],
        records_of: Callable[[int], Sequence[DecisionRecord]],
        jobs: Callable[[], Sequence[JobView]],
        *,
        submit: Callable[[Callable[[], None]], object],
        now_s: Callable[[], float],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: port for name, port in schedulers.items() if isinstance(port, ShowsIncidents)}
        self._changed = changed
        self._records_of = records_of
        self._jobs = jobs
        self._calls = OneCallEach(submit)
        self._now_s = now_s
        self._monotonic_s = monotonic_s
        self._next_s = float("-inf")
        self._lock = threading.Lock()
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
        mine = [one for one in self._changed(self._now_s() - CLOSED_SINCE_S) if one.scheduler in self._schedulers]
        with self._lock:
            for number in self._shown.keys() - {one.number for one in mine}:
                del self._shown[number]
        views = {view.key: view for view in self._jobs() if view.ranks}
        due: dict[str, list[_Due]] = {}
        for incident in mine:
            name = incident.scheduler
            if name is None or name not in free or len(due.get(name, ())) >= MAX_AT_ONCE:
                continue
            records = self._records_of(incident.number)
            if self._shown.get(incident.number) != _what_is_shown(incident, records):
                due.setdefault(name, []).append(_Due(incident, records, views.get(incident.key.job)))
        return due

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
