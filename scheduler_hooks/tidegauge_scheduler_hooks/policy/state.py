"""What the policy remembers: a fold over the audit, so that a restart changes nothing.

Kept is one short ``Mark`` a decision. What is real and what only would have been are told apart throughout: a decision
that is to be carried out (*real*) rests on what was carried out; one that only says what would be done rests on both,
so that ``observe`` walks whole ladders and meets the same limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import NamedTuple

from tidegauge.core.actions import ActionKind, Decision, DecisionRecord, Disposition, JobTarget, Outcome
from tidegauge.core.incidents import JobKey
from tidegauge.core.kubernetes import SCHEDULER as KUBERNETES
from tidegauge_scheduler_hooks.policy.models import carries_out

UNDONE = frozenset({Outcome.SUPERSEDED, Outcome.STOPPED})
"""Outcomes that say that nothing was done at all."""


class JobName(NamedTuple):
    """A job over all its attempts."""

    job_id: str
    uid: int


def job_name(job: JobKey) -> JobName:
    """The job that this is an attempt of."""
    return JobName(job.job_id, job.uid)


class User(NamedTuple):
    """Whom a limit for one user counts a job to: a uid, but on Kubernetes, where people share uids, a name in a
    namespace."""

    uid: int | None
    namespace: str | None = None
    name: str | None = None


def user_of(target: JobTarget, user_name: str) -> User:
    """The user of the job that this is a run of."""
    if target.scheduler != KUBERNETES:
        return User(target.job.uid)
    return User(None, target.job.job_id.partition("/")[0], user_name)


class Mark(NamedTuple):
    """What the policy remembers of one decision."""

    decision_id: str
    incident: int
    rule: str
    rung: int
    action: ActionKind
    disposition: Disposition
    brake: str | None
    job: JobKey
    user: User
    incarnation: str
    decided_s: float
    real: bool
    """Its mode would have let it be carried out."""
    reason: str
    breaker_reset_s: float | None
    """When the breaker had last been reset at that time; only of a decision that the breaker withheld."""
    outcome: Outcome | None = None
    finished_s: float | None = None

    @property
    def under_way(self) -> bool:
        """To be carried out, and not finished."""
        return self.disposition is Disposition.DO and self.outcome is None

    @property
    def done_s(self) -> float | None:
        """When it was done; what would have been done is taken as done at once. ``None``: it was not."""
        if self.disposition is Disposition.WOULD:
            return self.decided_s
        return self.ended_s if self.outcome is Outcome.DONE else None

    @property
    def ended_s(self) -> float:
        """When it was over, however it ended."""
        return self.decided_s if self.finished_s is None else self.finished_s

    def counts(self, *, real: bool) -> bool:
        """Whether a decision that is real, or is not, may rest on it."""
        return self.disposition is Disposition.DO or (self.disposition is Disposition.WOULD and not real)


@dataclass(frozen=True)
class _Index:
    """Marks by what they are looked up by. A value: with one more mark it is another, most of which is shared."""

    by_incident: Mapping[int, Mapping[str, Mark]] = field(default_factory=dict)
    by_job: Mapping[JobName, Mapping[str, Mark]] = field(default_factory=dict)
    acting: Mapping[str, Mark] = field(default_factory=dict)
    """Those that change something about a job, or would."""
    by_breaker: tuple[Mark, ...] = ()
    """Those that the breaker withheld."""

    def with_marks(self, marks: Iterable[Mark]) -> _Index:
        """With these, which take the place of those with the same decision."""
        by_incident, by_job, acting = dict(self.by_incident), dict(self.by_job), dict(self.acting)
        by_breaker = {mark.decision_id: mark for mark in self.by_breaker}
        for mark in marks:
            name = mark.decision_id
            by_incident[mark.incident] = {**by_incident.get(mark.incident, {}), name: mark}
            by_job[job_name(mark.job)] = {**by_job.get(job_name(mark.job), {}), name: mark}
            if mark.action.is_acting and mark.disposition is not Disposition.WITHHELD:
                acting[name] = mark
            if mark.brake == "breaker":
                by_breaker[name] = mark
        return _Index(by_incident, by_job, acting, tuple(by_breaker.values()))


_EMPTY = _Index()


@dataclass(frozen=True)
class PolicyState:
    """A value: every ``with_…`` returns another. ``paused`` and ``breaker_reset_s`` come from outside."""

    marks: Mapping[str, Mark] = field(default_factory=dict)
    """By decision id."""
    paused: str | None = None
    """Why nothing at all is to be done, in a person's words; ``None``: not paused."""
    breaker_reset_s: float | None = None
    """When a person last closed the breaker, on the policy clock."""
    index: _Index | None = field(default=None, compare=False, repr=False)
    """Of ``marks``, carried along so that a decision costs no look at all others; ``None``: made when it is needed."""

    @classmethod
    def of(cls, records: Iterable[DecisionRecord]) -> PolicyState:
        """The state after these decisions. They must reach back to when the oldest open incident was opened, and at
        least ``MEMORY_S``; more does no harm."""
        return cls().with_records(records)

    def with_decisions(self, decisions: Iterable[Decision]) -> PolicyState:
        """After these decisions were written down."""
        return self._with({decision.decision_id: _mark(decision) for decision in decisions})

    def with_records(self, records: Iterable[DecisionRecord]) -> PolicyState:
        """After news from the audit: decisions, or how they ended."""
        news = {
            record.decision.decision_id: _mark(record.decision)._replace(
                outcome=record.outcome, finished_s=record.finished_s
            )
            for record in records
        }
        return self._with(news)

    def forget(self, before_s: float, *, open_incidents: Collection[int]) -> PolicyState:
        """Without decisions made before ``before_s``, which is at least ``MEMORY_S`` ago, save those that may count
        for ever: of incidents that are open, unfinished ones, and those that keep the breaker open."""
        kept = {
            name: mark
            for name, mark in self.marks.items()
            if mark.decided_s >= before_s or mark.incident in open_incidents or mark.under_way or self._opens(mark)
        }
        if len(kept) == len(self.marks):
            return self
        return replace(self, marks=kept, index=_EMPTY.with_marks(kept.values()))

    @property
    def breaker(self) -> str | None:
        """Why the circuit breaker holds back all actions, since when; ``None``: it is closed. What it would do in
        another mode than ``act`` does not count."""
        opening = self.breaker_opening(real=True)
        if opening is None:
            return None
        return f"{opening.reason}, at {datetime.fromtimestamp(opening.decided_s, timezone.utc):%Y-%m-%d %H:%M} UTC"

    def breaker_opening(self, *, real: bool) -> Mark | None:
        """The decision at which the breaker opened, if it has not been reset since."""
        return self._breaker_openings.get(real)

    def of_incident(self, number: int) -> tuple[Mark, ...]:
        """All decisions on one incident."""
        return tuple(self._index.by_incident.get(number, {}).values())

    def of_job(self, job: JobKey) -> tuple[Mark, ...]:
        """All decisions on a job, over its attempts."""
        return tuple(self._index.by_job.get(job_name(job), {}).values())

    def is_busy(self, job: JobKey) -> bool:
        """Whether something is being carried out on the job."""
        return any(mark.under_way for mark in self.of_job(job))

    def is_over(self, job: JobKey, incarnation: str, *, real: bool) -> bool:
        """Whether this run of the job was ended by us."""
        return any(
            mark.action.is_stop
            and mark.done_s is not None
            and mark.counts(real=real)
            and (mark.job, mark.incarnation) == (job, incarnation)
            for mark in self.of_job(job)
        )

    def requeues(self, job: JobKey, *, since_s: float, real: bool) -> int:
        """How often we requeued the job; such that failed count, because they may have been done."""
        return sum(
            mark.action is ActionKind.REQUEUE
            and mark.outcome not in UNDONE
            and mark.counts(real=real)
            and mark.decided_s > since_s
            for mark in self.of_job(job)
        )

    def acting(self, *, since_s: float, real: bool) -> Iterable[Mark]:
        """Decisions to change something about a job that were made after ``since_s``, whatever came of them."""
        return (mark for mark in self._index.acting.values() if mark.decided_s > since_s and mark.counts(real=real))

    def _with(self, news: Mapping[str, Mark]) -> PolicyState:
        """The first outcome of a decision stays."""
        changed = {
            name: mark
            for name, mark in news.items()
            if name not in self.marks or (self.marks[name].outcome is None and mark.outcome is not None)
        }
        if not changed:
            return self
        return replace(self, marks={**self.marks, **changed}, index=self._index.with_marks(changed.values()))

    def _opens(self, mark: Mark) -> bool:
        return mark.brake == "breaker" and mark.breaker_reset_s == self.breaker_reset_s

    @cached_property
    def _index(self) -> _Index:
        return _EMPTY.with_marks(self.marks.values()) if self.index is None else self.index

    @cached_property
    def _breaker_openings(self) -> dict[bool, Mark]:
        openings = sorted(filter(self._opens, self._index.by_breaker), key=lambda mark: mark.decided_s, reverse=True)
        return {mark.real: mark for mark in openings}


def _mark(decision: Decision) -> Mark:
    withheld_by_breaker = decision.disposition is Disposition.WITHHELD and decision.brake == "breaker"
    return Mark(
        decision_id=decision.decision_id,
        incident=decision.incident.number,
        rule=decision.rule,
        rung=decision.rung,
        action=decision.action,
        disposition=decision.disposition,
        brake=decision.brake,
        job=decision.target.job,
        user=user_of(decision.target, decision.facts.user_name),
        incarnation=decision.target.incarnation,
        decided_s=decision.decided_s,
        real=carries_out(decision.mode, decision.action),
        reason=decision.reason,
        breaker_reset_s=decision.parameters.get("breaker_reset_s") if withheld_by_breaker else None,
    )
