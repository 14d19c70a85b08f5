"""Looks up the earlier runs of each job that runs, once, for the coordinator to judge the job by them, too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import AuditError
from tidegauge.core.job_records.earlier_runs import (
    MAX_EARLIER_RUNS,
    EarlierRuns,
    earlier_runs,
    filled_runs,
    has_same_script,
    is_earlier_run,
)
from tidegauge.core.job_records.memory import JobMemory
from tidegauge.core.job_records.record import JobRecord, by_job, record_of
from tidegauge.core.job_records.search import RecordFilter
from tidegauge.core.views import JobView

log = logging.getLogger(__name__)

MAX_JOBS_A_TICK = 5
"""The loop of incidents waits: some ten milliseconds for each."""
MAX_RECORDS = 100
"""Newest records of one user and job name among which earlier runs are looked for."""


class EndedJobs(Protocol):
    """The methods of ``store.JobRecordStore`` that are called here. They raise ``AuditError``."""

    def ended(self, which: RecordFilter, /, *, limit: int) -> Sequence[JobRecord]: ...

    def memory(self, record: JobRecord, /) -> JobMemory | None: ...


class EarlierRunsLookup:
    """For one thread: ``tick`` once a second. ``know`` takes what was found, for one attempt of a job."""

    problem: str | None = None
    """It writes nothing, so nothing keeps it from writing."""

    def __init__(
        self,
        jobs: Callable[[], Sequence[JobView]],
        records: EndedJobs,
        know: Callable[[JobKey, EarlierRuns], None],
        *,
        now_s: Callable[[], float],
    ) -> None:
        self._jobs = jobs
        self._records = records
        self._know = know
        self._now_s = now_s
        self._known: set[JobKey] = set()

    def tick(self) -> None:
        """Look up jobs that have counted a step; never raises ``AuditError``."""
        views = by_job(view for view in self._jobs() if view.running)
        self._known &= views.keys()
        begun = [job for job, of_job in views.items() if job not in self._known and _has_begun(of_job)]
        for job in begun[:MAX_JOBS_A_TICK]:
            try:
                found = self._look(record_of(views[job], None, now_s=self._now_s()))
            except AuditError as error:
                log.info("earlier runs of job %s are not known: %s", job.job_id, error)
                return
            self._known.add(job)
            if found is not None:
                self._know(job, found)

    def _look(self, job: JobRecord) -> EarlierRuns | None:
        if not job.job_name:
            return None
        which = RecordFilter(since_s=0.0, job_name=job.job_name, user_name=job.user_name)
        ended = self._records.ended(which, limit=MAX_RECORDS)
        records = [run for run in ended if is_earlier_run(run, job)][:MAX_EARLIER_RUNS]
        runs = [(run, self._records.memory(run) or JobMemory()) for run in records]
        found = earlier_runs(runs)
        if found is None:
            return None
        return found._replace(filled=filled_runs([run for run in runs if has_same_script(run[0], job)]))


def _has_begun(views: Sequence[JobView]) -> bool:
    return any(rank.step > 0 for view in views for rank in view.ranks)
