"""Has schedulers remark on jobs that ended: how full their GPUs were, once and in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, runtime_checkable

from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.end_words import end_sentence
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.job_ends import scheduler_of
from tidegauge_scheduler_hooks.one_call_each import OneCallEach
from tidegauge_scheduler_hooks.ports import SchedulerError, TemporaryError

log = logging.getLogger(__name__)

SETTLED_S = 5.0
"""After the ranks of a job ended: their last readings arrive."""
WAITS_S = (10.0, 20.0, 40.0, 80.0, 160.0)
"""Before each further try: a slurmdbd or an API server that is restarted is away for minutes."""
MAX_TRIES = len(WAITS_S) + 1


@runtime_checkable
class RemarksEnds(Protocol):
    """A scheduler that keeps a remark on a job that ended."""

    def remark_end(self, job: JobView, record: JobRecord, text: str) -> None:
        """Leave ``text``, one line, where people look at the job with the scheduler's own tools. The same remark again
        changes nothing: a head that was killed repeats it. Blocks for seconds at most. Raises ``SchedulerError``, and
        ``TemporaryError`` while the job goes on: out of memory, or ended by its ``tidegauge run``, was a part of it."""


@dataclass
class _Ended:
    """``due_s`` is on the monotonic clock; ``None``: it is remarked on, or nothing helps."""

    view: JobView
    record: JobRecord
    since_s: float
    tries: int = 0
    due_s: float | None = 0.0


class EndRemarks:
    """For one thread. ``submit`` is that of ``OneCallEach``."""

    def __init__(
        self,
        schedulers: Mapping[str, object],
        *,
        submit: Callable[[Callable[[], None]], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: port for name, port in schedulers.items() if isinstance(port, RemarksEnds)}
        self._calls = OneCallEach(submit)
        self._monotonic_s = monotonic_s
        self._jobs: dict[JobKey, _Ended] = {}
        self._lock = threading.Lock()

    def look(self, ended: Sequence[tuple[JobView, JobRecord]]) -> None:
        """Remark on those of these jobs whose end is settled; returns at once. Of other jobs it forgets all but those
        to be tried again, whose ranks are forgotten sooner. A job that is started again has its remark when it ends
        for good."""
        now_s, due = self._monotonic_s(), dict[str, list[_Ended]]()
        with self._lock:
            here = {view.key for view, _ in ended}
            jobs = {
                key: job for key, job in self._jobs.items() if key not in here and job.tries and job.due_s is not None
            }
            for view, record in ended:
                if scheduler_of(view) in self._schedulers and record.end is not JobEnd.REQUEUED:
                    job = self._jobs.get(view.key) or _Ended(view, record, now_s)
                    job.view, job.record = view, record
                    jobs[view.key] = job
            self._jobs = jobs
            for job in jobs.values():
                name = scheduler_of(job.view)
                if self._calls.is_free(name) and _is_due(job, now_s):
                    job.tries += 1
                    job.due_s = now_s + WAITS_S[job.tries - 1] if job.tries < MAX_TRIES else None
                    due.setdefault(name, []).append(replace(job))
        for name, some in due.items():
            self._calls.submit(name, partial(self._remark, name, some))

    def _remark(self, name: str, jobs: Sequence[_Ended]) -> None:
        for job in jobs:
            if self._remark_one(name, job):
                with self._lock:
                    if job.view.key in self._jobs:
                        self._jobs[job.view.key].due_s = None

    def _remark_one(self, name: str, job: _Ended) -> bool:
        """Returns whether this was the last try."""
        job_id = job.record.job.job_id
        try:
            self._schedulers[name].remark_end(job.view, job.record, end_sentence(job.record))
        except TemporaryError as error:
            if job.due_s is not None:
                log.info("%s has no remark on the end of job %s yet: %s", name, job_id, error)
                return False
            log.warning("%s has no remark on the end of job %s after %d tries: %s", name, job_id, job.tries, error)
        except SchedulerError as error:
            log.warning("%s takes no remark on the end of job %s: %s", name, job_id, error)
        except Exception:
            log.exception("the adapter for %s could not remark on the end of job %s", name, job_id)
        return True


def _is_due(job: _Ended, now_s: float) -> bool:
    if job.due_s is None or now_s < job.due_s:
        return False
    is_told = job.record.end is not None and job.record.end.level >= JobEnd.COMPLETED.level
    return is_told and now_s - job.since_s >= SETTLED_S
