"""Has schedulers remark on jobs that ended: how full their GPUs were, once and in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.end_words import end_sentence
from tidegauge.core.job_records.record import JobEnd, JobRecord
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.job_ends import scheduler_of
from tidegauge_scheduler_hooks.ports import SchedulerError, TemporaryError

log = logging.getLogger(__name__)

SETTLED_S = 5.0
"""After the ranks of a job ended: their last readings arrive."""
MAX_TRIES = 3
RETRY_S = 10.0


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

    since_s: float
    tries: int = 0
    due_s: float | None = 0.0


class EndRemarks:
    """For one thread. ``submit`` runs a call in another thread, some time soon: one at a time for each scheduler."""

    def __init__(
        self,
        schedulers: Mapping[str, object],
        *,
        submit: Callable[[Callable[[], None]], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: port for name, port in schedulers.items() if isinstance(port, RemarksEnds)}
        self._submit = submit
        self._monotonic_s = monotonic_s
        self._jobs: dict[JobKey, _Ended] = {}
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def look(self, ended: Sequence[tuple[JobView, JobRecord]]) -> None:
        """Remark on those of these jobs whose end is settled; returns at once, and forgets all other jobs. A job that
        is started again has its remark when it ends for good."""
        now_s, due = self._monotonic_s(), dict[str, list[tuple[JobView, JobRecord]]]()
        with self._lock:
            jobs = {
                view.key: (view, record)
                for view, record in ended
                if scheduler_of(view) in self._schedulers and record.end is not JobEnd.REQUEUED
            }
            self._jobs = {key: self._jobs.get(key) or _Ended(now_s) for key in jobs}
            for key, job in self._jobs.items():
                view, record = jobs[key]
                name = scheduler_of(view)
                if name not in self._busy and _is_due(job, record, now_s):
                    job.tries += 1
                    job.due_s = now_s + RETRY_S if job.tries < MAX_TRIES else None
                    due.setdefault(name, []).append((view, record))
            self._busy |= due.keys()
        for name, some in due.items():
            self._submit(partial(self._remark, name, some))

    def _remark(self, name: str, jobs: Sequence[tuple[JobView, JobRecord]]) -> None:
        try:
            for view, record in jobs:
                if self._remark_one(name, view, record):
                    with self._lock:
                        if view.key in self._jobs:
                            self._jobs[view.key].due_s = None
        finally:
            with self._lock:
                self._busy.discard(name)

    def _remark_one(self, name: str, view: JobView, record: JobRecord) -> bool:
        """Returns whether this was the last try."""
        try:
            self._schedulers[name].remark_end(view, record, end_sentence(record))
        except TemporaryError as error:
            log.info("%s has no remark on the end of job %s yet: %s", name, record.job.job_id, error)
            return False
        except SchedulerError as error:
            log.warning("%s takes no remark on the end of job %s: %s", name, record.job.job_id, error)
        except Exception:
            log.exception("the adapter for %s could not remark on the end of job %s", name, record.job.job_id)
        return True


def _is_due(job: _Ended, record: JobRecord, now_s: float) -> bool:
    if job.due_s is None or now_s < job.due_s:
        return False
    is_told = record.end is not None and record.end.level >= JobEnd.COMPLETED.level
    return is_told and now_s - job.since_s >= SETTLED_S
