"""Schedulers show incidents in objects of their own: each state once, in the background, and no loop waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from sample_views import job_view
from scheduler_values import JOB, incident
from tidegauge.core.incidents import Closure, Incident, IncidentState
from tidegauge.core.incidents.actions import AuditError, DecisionRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError
from tidegauge_scheduler_hooks.shown_incidents import (
    CLOSED_SINCE_S,
    LOOK_EVERY_S,
    MAX_AT_ONCE,
    REFUSED_FOR_S,
    ShownIncidents,
)

OPEN = incident(scheduler="fake")
CLOSED = replace(OPEN, state=IncidentState.CLOSED, closed_unix_s=OPEN.updated_unix_s, closure=Closure.JOB_ENDED)


class Scheduler:
    def __init__(self) -> None:
        self.shown: list[Incident] = []
        self.jobs: list[JobView | None] = []
        self.errors: list[Exception] = []

    def show_incident(self, incident: Incident, records: Sequence[DecisionRecord], job: JobView | None) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.shown.append(incident)
        self.jobs.append(job)


class Site:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.now_s = 0.0
        self.calls: list[Callable[[], None]] = []
        self.kept: list[Incident] = [OPEN]
        """In the database; those that are open are in the loop's memory, too."""
        self.reads = 0
        self.since_s: list[float] = []
        self.jobs = [job_view(job_id=JOB.job_id)]
        self.database_is_away = False
        self.component = self.another()

    def another(self) -> ShownIncidents:
        """As another head would have it."""
        return ShownIncidents(
            {"fake": self.scheduler, "silent": object()},
            lambda: [one for one in self.kept if one.is_open],
            self,
            lambda _: (),
            lambda: self.jobs,
            submit=self.calls.append,
            now_s=lambda: 1e9 + self.now_s,
            monotonic_s=lambda: self.now_s,
        )

    def incidents(self, *, since_s: float) -> Sequence[Incident]:
        self._read()
        self.since_s.append(since_s)
        return self.kept

    def incident(self, number: int, /) -> Incident | None:
        self._read()
        return next((one for one in self.kept if one.number == number), None)

    def _read(self) -> None:
        self.reads += 1
        if self.database_is_away:
            raise AuditError("locked")

    def pass_s(self, seconds: float, *, works: bool = True) -> list[Incident]:
        """What has been shown since."""
        before = len(self.scheduler.shown)
        for _ in range(int(seconds)):
            self.now_s += 1.0
            self.component.tick()
            while works and self.calls:
                self.calls.pop(0)()
        return self.scheduler.shown[before:]


@pytest.fixture
def site() -> Site:
    return Site()


def test_each_state_of_an_incident_is_shown_once(site: Site) -> None:
    assert site.pass_s(60) == [OPEN]
    grown = site.kept[0] = replace(OPEN, onset_step=17)
    assert site.pass_s(60) == [grown]
    site.kept[0] = CLOSED
    assert site.pass_s(60) == [CLOSED]
    assert site.pass_s(3600) == []
    assert all(job is not None for job in site.scheduler.jobs)


def test_another_head_shows_what_closed_while_there_was_none(site: Site) -> None:
    site.pass_s(60)
    site.kept[0], site.jobs = CLOSED, []
    site.component, began_s = site.another(), site.now_s
    assert site.pass_s(60) == [CLOSED]
    assert site.scheduler.jobs[-1] is None
    assert site.since_s[-1] == pytest.approx(1e9 + began_s - CLOSED_SINCE_S, abs=LOOK_EVERY_S)


def test_the_database_is_read_at_the_start_and_for_what_has_closed_alone(site: Site) -> None:
    site.pass_s(600)
    assert site.reads == 1
    site.kept[0] = CLOSED
    assert site.pass_s(600) == [CLOSED]
    assert site.reads == 2


def test_incidents_of_other_schedulers_are_left_alone(site: Site) -> None:
    site.kept = [replace(OPEN, scheduler="silent"), replace(OPEN, scheduler=None)]
    assert site.pass_s(60) == []


def test_what_a_retry_may_help_is_tried_at_the_next_look(site: Site) -> None:
    site.scheduler.errors = [TemporaryError("busy")]
    assert site.pass_s(LOOK_EVERY_S) == []
    assert site.pass_s(LOOK_EVERY_S) == [OPEN]


def test_a_refusal_is_logged_once_and_tried_again_minutes_later(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.scheduler.errors = [PermanentError("no such kind")] * 3
    with caplog.at_level(logging.INFO):
        assert site.pass_s(REFUSED_FOR_S * 2) == []
    assert [record.getMessage() for record in caplog.records] == ["fake shows no incidents: no such kind"]
    assert site.pass_s(REFUSED_FOR_S * 2) == [OPEN]


def test_a_defect_over_one_incident_hides_no_other(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.kept = [OPEN, replace(OPEN, number=2)]
    site.scheduler.errors = [ZeroDivisionError()]
    assert [one.number for one in site.pass_s(60)] == [2]
    assert "could not show incident 1" in caplog.text


def test_a_call_that_hangs_delays_nothing_and_is_not_made_twice(site: Site) -> None:
    site.pass_s(600, works=False)
    assert len(site.calls) == 1


def test_a_database_that_is_away_is_asked_again(site: Site) -> None:
    site.database_is_away = True
    assert site.pass_s(60) == []
    site.database_is_away = False
    assert site.pass_s(60) == [OPEN]
    assert site.component.problem is None


def test_many_incidents_are_shown_a_few_at_a_time(site: Site) -> None:
    site.kept = [replace(OPEN, number=number) for number in range(MAX_AT_ONCE + 7)]
    assert len(site.pass_s(LOOK_EVERY_S)) == MAX_AT_ONCE
    assert len(site.pass_s(LOOK_EVERY_S)) == 7


def test_what_is_forgotten_is_not_remembered(site: Site) -> None:
    site.pass_s(60)
    site.kept = []
    site.pass_s(60)
    site.kept = [OPEN]
    assert site.pass_s(60) == [OPEN]
