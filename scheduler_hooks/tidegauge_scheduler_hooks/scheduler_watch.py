"""The schedulers' answers about jobs with an incident: asked in the background, one query per scheduler at a time.

The loop never waits for a scheduler: it works with the latest answer, and with none if that is too old. Whether the job
is still the one that was described is checked right before any action on it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tidegauge.core.ids import JobKey
from tidegauge.core.incidents.actions import SchedulerFacts
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import SchedulerError, SchedulerPort

log = logging.getLogger(__name__)

ASK_EVERY_S = 5.0
MIN_ASK_INTERVAL_S = 1.0
"""For a job that has not been described yet."""
PAUSE_PER_ANSWER = 10.0
"""A slow answer costs its scheduler much: each is asked for at most a tenth of the time."""
TOO_OLD_S = 60.0
"""An older answer does not count: a busy slurmctld takes up to half a minute."""
LOCAL = "local"
"""The scheduler of jobs under ``tidegauge run``, and of jobs without a known scheduler."""


def scheduler_name(job: JobView) -> str:
    """The adapter of a job: ``local`` for one that ``tidegauge run`` keeps, whatever started that."""
    return LOCAL if job.launch is not None else job.scheduler or LOCAL


def heard_on(job: JobView) -> tuple[str, ...]:
    """The schedulers that are asked about a job, its own first. A ``tidegauge run`` in an allocation is in a job of
    Slurm too, and its owner may have exempted it there."""
    name = scheduler_name(job)
    return (name, SLURM) if name != SLURM and job.is_in_slurm else (name,)


@dataclass
class _Scheduler:
    """One scheduler; times on the monotonic clock."""

    port: SchedulerPort
    asking: bool = False
    asked_s: float = float("-inf")
    answered_s: float = float("-inf")
    took_s: float = 0.0
    """Of the last answer."""
    facts: Mapping[JobKey, SchedulerFacts] = field(default_factory=dict)
    known: frozenset[JobKey] = frozenset()
    """The jobs of the last answer; those without facts are unknown to the scheduler."""
    last_facts: Mapping[JobKey, SchedulerFacts] = field(default_factory=dict)
    """The facts of these jobs in the latest answer that knew them."""
    problem: str | None = None


class SchedulerWatch:
    """The latest answer of each scheduler. Thread-safe. ``submit`` runs a call in another thread, some time soon."""

    def __init__(
        self,
        schedulers: Mapping[str, SchedulerPort],
        *,
        submit: Callable[[Callable[[], None]], object],
        monotonic_s: Callable[[], float],
    ) -> None:
        self._schedulers = {name: _Scheduler(port) for name, port in schedulers.items()}
        self._submit = submit
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()

    def ask(self, jobs: Iterable[JobView]) -> None:
        """Have ``jobs`` described, if it is time to. Returns at once."""
        by_scheduler: dict[str, list[JobView]] = {}
        for job in jobs:
            for name in heard_on(job):
                by_scheduler.setdefault(name, []).append(job)
        for name, wanted in by_scheduler.items():
            scheduler = self._schedulers.get(name)
            if scheduler is not None and self._is_due(scheduler, wanted):
                self._submit(partial(self._describe, name, scheduler, wanted))

    def facts(self, job: JobView) -> SchedulerFacts | None:
        """The latest answer about ``job``; ``None`` if there is none, or only one that is too old."""
        name, *others = heard_on(job)
        facts = self._facts_at(name, job)
        for other in others:
            if facts is not None and other in self._schedulers:
                said = self._facts_at(other, job)
                facts = None if said is None else _joined(facts, said)
        return facts

    def _facts_at(self, name: str, job: JobView) -> SchedulerFacts | None:
        scheduler = self._schedulers.get(name)
        if scheduler is None:
            return None
        with self._lock:
            fresh = self._monotonic_s() - scheduler.answered_s <= TOO_OLD_S
            return scheduler.facts.get(job.key) if fresh else None

    def last_facts(self, name: str) -> Mapping[JobKey, SchedulerFacts]:
        """The last facts of one scheduler about each present job, however old."""
        scheduler = self._schedulers.get(name)
        with self._lock:
            return {} if scheduler is None else scheduler.last_facts

    def is_known(self, job: JobView) -> bool:
        """Whether the schedulers have been asked about ``job`` at all: before that, nothing should be judged."""
        schedulers = [self._schedulers[name] for name in heard_on(job) if name in self._schedulers]
        with self._lock:
            return all(job.key in scheduler.known or scheduler.problem is not None for scheduler in schedulers)

    def problems(self) -> dict[str, str]:
        """Schedulers that do not answer, and why."""
        with self._lock:
            found = {name: self._problem(scheduler) for name, scheduler in self._schedulers.items()}
        return {name: problem for name, problem in found.items() if problem is not None}

    def _problem(self, scheduler: _Scheduler) -> str | None:
        silent_s = self._monotonic_s() - scheduler.asked_s
        if scheduler.asking and silent_s > TOO_OLD_S:
            return f"no answer for {silent_s:.0f} s to the request for its jobs"
        return scheduler.problem

    def _is_due(self, scheduler: _Scheduler, jobs: Iterable[JobView]) -> bool:
        with self._lock:
            now_s = self._monotonic_s()
            if scheduler.asking or now_s - scheduler.asked_s < MIN_ASK_INTERVAL_S:
                return False
            least_s = ASK_EVERY_S if all(job.key in scheduler.known for job in jobs) else MIN_ASK_INTERVAL_S
            wait_s = max(least_s, min(PAUSE_PER_ANSWER * scheduler.took_s, TOO_OLD_S / 2))
            if now_s - scheduler.asked_s < wait_s:
                return False
            scheduler.asking, scheduler.asked_s = True, now_s
            return True

    def _describe(self, name: str, scheduler: _Scheduler, jobs: list[JobView]) -> None:
        problem: str | None = None
        facts: Mapping[JobKey, SchedulerFacts] | None = None
        try:
            facts = scheduler.port.describe(jobs)
        except SchedulerError as error:
            problem = str(error)
        except Exception as error:
            log.exception("the adapter for %s could not describe its jobs", name)
            problem = f"the adapter for {name} failed: {error}"
        with self._lock:
            scheduler.asking = False
            scheduler.took_s = self._monotonic_s() - scheduler.asked_s
            if problem is not None and scheduler.problem is None:
                log.warning("%s cannot describe its jobs: %s", name, problem)
            scheduler.problem = problem
            if facts is not None:
                scheduler.facts, scheduler.answered_s = dict(facts), self._monotonic_s()
                scheduler.known = frozenset(job.key for job in jobs)
                whole = {**scheduler.last_facts, **facts}
                scheduler.last_facts = {key: whole[key] for key in scheduler.known if key in whole}


def _joined(own: SchedulerFacts, other: SchedulerFacts) -> SchedulerFacts:
    """``own``, with the exemption, account, partition and QOS of ``other``: they do not change which scheduler acts."""
    return replace(
        own,
        exempt=own.exempt or other.exempt,
        account=own.account or other.account,
        partition=own.partition or other.partition,
        qos=own.qos or other.qos,
    )
