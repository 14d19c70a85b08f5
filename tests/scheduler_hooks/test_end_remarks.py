"""Schedulers remark on jobs that ended: once, when the end is settled, and the loop never waits."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from sample_views import job_record, job_view
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.end_remarks import MAX_TRIES, SETTLED_S, EndRemarks
from tidegauge_scheduler_hooks.ports import PermanentError, TemporaryError

VIEW = job_view(scheduler="fake", running=False)
DONE = job_record(end=JobEnd.COMPLETED)


class Scheduler:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[Exception] = []

    def remark_end(self, job: JobView, record: JobRecord, text: str) -> None:
        self.texts.append(text)
        if self.errors:
            raise self.errors.pop(0)


class Site:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.now_s = 0.0
        self.calls: list[Callable[[], None]] = []
        schedulers = {"fake": self.scheduler, "silent": object()}
        self.remarks = EndRemarks(schedulers, submit=self.calls.append, monotonic_s=lambda: self.now_s)

    def look(self, *ended: tuple[JobView, JobRecord], times: int = 1, works: bool = True) -> list[str]:
        for _ in range(times):
            self.now_s += 1.0
            self.remarks.look(ended)
            while works and self.calls:
                self.calls.pop()()
        return self.scheduler.texts


@pytest.fixture
def site() -> Site:
    return Site()


def test_a_job_that_ended_has_one_remark_after_its_last_readings(site: Site) -> None:
    assert site.look((VIEW, DONE), times=int(SETTLED_S)) == []
    (text,) = site.look((VIEW, DONE), times=200)
    assert text.startswith("ended after ")
    assert "`tidegauge job 4711`" in text


@pytest.mark.parametrize("end", [JobEnd.ENDED, JobEnd.KILLED, JobEnd.UNKNOWN])
def test_a_job_that_its_scheduler_has_not_seen_end_has_no_remark(site: Site, end: JobEnd) -> None:
    assert site.look((VIEW, DONE._replace(end=end)), times=1000) == []


def test_an_end_that_is_told_late_waits_no_longer(site: Site) -> None:
    site.look((VIEW, DONE._replace(end=JobEnd.ENDED)), times=20)
    (text,) = site.look((VIEW, DONE), times=1)
    assert "(completed)" in text


def test_a_requeued_job_has_its_remark_when_it_ends_for_good(site: Site) -> None:
    assert site.look((VIEW, DONE._replace(end=JobEnd.REQUEUED)), times=200) == []
    assert len(site.look((VIEW, DONE), times=10)) == 1


@pytest.mark.parametrize(("error", "tries"), [(TemporaryError("busy"), 2), (PermanentError("no such job"), 1)])
def test_only_what_a_retry_may_help_is_tried_again(site: Site, error: Exception, tries: int) -> None:
    site.scheduler.errors = [error]
    assert len(site.look((VIEW, DONE), times=200)) == tries


def test_a_scheduler_that_stays_away_is_tried_for_minutes_and_told_of(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.scheduler.errors = [TemporaryError("away")] * 100
    with caplog.at_level(logging.WARNING):
        assert len(site.look((VIEW, DONE), times=240)) < MAX_TRIES
        assert caplog.records == []
        assert len(site.look((VIEW, DONE), times=1000)) == MAX_TRIES
    (said,) = (one.getMessage() for one in caplog.records)
    assert "job 4711" in said
    assert "away" in said


def test_a_job_whose_ranks_are_forgotten_meanwhile_is_tried_on(site: Site) -> None:
    site.scheduler.errors = [TemporaryError("away")] * (MAX_TRIES - 1)
    site.look((VIEW, DONE), times=10)
    assert len(site.look(times=1000)) == MAX_TRIES


def test_a_job_that_is_requeued_meanwhile_is_not_tried_on(site: Site) -> None:
    site.scheduler.errors = [TemporaryError("away")]
    site.look((VIEW, DONE), times=10)
    site.look((VIEW, DONE._replace(end=JobEnd.REQUEUED)))
    assert len(site.look(times=1000)) == 1


def test_a_defect_in_an_adapter_costs_no_other_job_its_remark(site: Site) -> None:
    site.scheduler.errors = [RuntimeError("a defect")]
    other = job_view(job_id="other", scheduler="fake", running=False)
    assert len(site.look((VIEW, DONE), (other, DONE), times=200)) == 2


def test_a_scheduler_that_hangs_has_one_call_and_holds_nothing_up(site: Site) -> None:
    other = job_view(job_id="other", scheduler="fake", running=False)
    site.look((VIEW, DONE), times=50, works=False)
    site.look((VIEW, DONE), (other, DONE), times=50, works=False)
    assert len(site.calls) == 1


def test_jobs_of_schedulers_that_keep_no_remarks_are_left_alone(site: Site) -> None:
    site.look((job_view(scheduler="silent", running=False), DONE), (job_view(scheduler=None, running=False), DONE))
    assert site.calls == []
