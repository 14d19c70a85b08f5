"""Schedulers are asked how jobs ended: in the background, a few times, and the loop never waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from sample_views import job_view
from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.job_ends import WAITS_S, JobEnds
from tidegauge_scheduler_hooks.ports import TemporaryError

VIEW = job_view(scheduler="fake", running=False)
KEY = VIEW.key


class Scheduler:
    def __init__(self) -> None:
        self.asked: list[int] = []
        self.answer: Mapping[JobKey, JobEnd] = {}
        self.error: Exception | None = None

    def ends(self, jobs: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        self.asked.append(len(jobs))
        if self.error is not None:
            raise self.error
        return self.answer


class Site:
    def __init__(self) -> None:
        self.scheduler = Scheduler()
        self.now_s = 0.0
        self.calls: list[Callable[[], None]] = []
        schedulers = {"fake": self.scheduler, "silent": object()}
        self.ends = JobEnds(schedulers, submit=self.calls.append, monotonic_s=lambda: self.now_s)

    def look(self, *views: JobView, after_s: float = 1.0, works: bool = True) -> Mapping[JobKey, JobEnd]:
        self.now_s += after_s
        found = self.ends.told(views or (VIEW,))
        while works and self.calls:
            self.calls.pop()()
        return found


@pytest.fixture
def site() -> Site:
    return Site()


def test_an_end_is_told_once_the_scheduler_knows_it(site: Site) -> None:
    for _ in range(4):
        assert site.look() == {}
    site.scheduler.answer = {KEY: JobEnd.COMPLETED}
    for _ in range(20):
        site.look()
    assert site.look() == {KEY: JobEnd.COMPLETED}
    assert len(site.scheduler.asked) == 2, "an answer ends the questions"


def test_all_jobs_are_asked_about_at_once(site: Site) -> None:
    views = [job_view(job_id=str(number), scheduler="fake", attempt=number) for number in range(400)]
    for _ in range(5):
        site.look(*views)
    assert site.scheduler.asked == [400]


@pytest.mark.parametrize("error", [None, TemporaryError("away"), RuntimeError("a defect")])
def test_a_scheduler_that_does_not_know_is_asked_a_few_times(site: Site, error: Exception | None) -> None:
    site.scheduler.error = error
    for _ in range(600):
        assert site.look() == {}
    assert len(site.scheduler.asked) == len(WAITS_S)


def test_a_scheduler_that_hangs_has_one_question_and_holds_nothing_up(site: Site) -> None:
    for _ in range(600):
        assert site.look(works=False) == {}
    assert len(site.calls) == 1


def test_a_job_that_is_forgotten_takes_no_room(site: Site) -> None:
    site.look()
    site.look(job_view(job_id="other", scheduler="silent"))
    site.scheduler.answer = {KEY: JobEnd.FAILED}
    assert site.look() == {}


def test_a_scheduler_that_tells_no_ends_is_not_asked(site: Site) -> None:
    for _ in range(10):
        assert site.look(job_view(scheduler="silent")) == {}
    assert site.calls == []
