"""Asks schedulers how jobs ended whose ranks have: in the background, a few times, for all jobs of one at once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from tidegauge.core.ids import JobKey
from tidegauge.core.job_records.record import JobEnd
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.one_call_each import OneCallEach
from tidegauge_scheduler_hooks.ports import SchedulerError

log = logging.getLogger(__name__)

WAITS_S = (2.0, 5.0, 10.0, 20.0, 40.0)
"""Before each question about a job: its script may go on when its ranks have ended, and an epilog takes a while."""


@runtime_checkable
class TellsEnds(Protocol):
    """A scheduler that knows how jobs ended."""

    def ends(self, jobs: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        """How these runs ended, as far as they have. Raises ``SchedulerError``."""


@dataclass
class _Job:
    """``due_s`` is on the monotonic clock."""

    view: JobView
    due_s: float
    asked: int = 0
    end: JobEnd | None = None


class JobEnds:
    """For one thread. ``submit`` is that of ``OneCallEach``."""

    def __init__(
        self,
        schedulers: Mapping[str, object],
        *,
        submit: Callable[[Callable[[], None]], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: port for name, port in schedulers.items() if isinstance(port, TellsEnds)}
        self._calls = OneCallEach(submit)
        self._monotonic_s = monotonic_s
        self._jobs: dict[JobKey, _Job] = {}
        self._lock = threading.Lock()

    def told(self, ended: Sequence[JobView]) -> Mapping[JobKey, JobEnd]:
        """How these jobs ended, one view of each, as far as it is known; the others are asked about. Returns at once,
        and forgets all other jobs."""
        now_s, due = self._monotonic_s(), dict[str, list[JobView]]()
        with self._lock:
            self._jobs = {
                view.key: self._jobs.get(view.key) or _Job(view, now_s + WAITS_S[0])
                for view in ended
                if scheduler_of(view) in self._schedulers
            }
            for job in self._jobs.values():
                name = scheduler_of(job.view)
                if job.end is None and job.asked < len(WAITS_S) and job.due_s <= now_s and self._calls.is_free(name):
                    job.asked += 1
                    job.due_s = now_s + WAITS_S[min(job.asked, len(WAITS_S) - 1)]
                    due.setdefault(name, []).append(job.view)
            found = {key: job.end for key, job in self._jobs.items() if job.end is not None}
        for name, views in due.items():
            self._calls.submit(name, partial(self._ask, name, views))
        return found

    def _ask(self, name: str, views: Sequence[JobView]) -> None:
        ends: Mapping[JobKey, JobEnd] = {}
        try:
            ends = self._schedulers[name].ends(views)
        except SchedulerError as error:
            log.info("%s does not say how %d jobs ended: %s", name, len(views), error)
        except Exception:
            log.exception("the adapter for %s could not say how jobs ended", name)
        with self._lock:
            for key, end in ends.items():
                if key in self._jobs:
                    self._jobs[key].end = end


def scheduler_of(view: JobView) -> str:
    """A ``tidegauge run`` in an allocation is in a job of Slurm, too."""
    return SLURM if any(rank.slurm is not None for rank in view.ranks) else view.scheduler or ""
