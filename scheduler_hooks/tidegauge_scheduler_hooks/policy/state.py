"""The policy's memory: a fold over the audit, so that a restart changes nothing.

It keeps one short ``PolicyMark`` per decision. *Real* decisions are kept apart throughout: a decision to be carried out
rests on what was carried out; one that only says what would be done rests on both, so that ``observe`` walks whole
ladders and meets the same limits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import NamedTuple, TypeVar

from tidegauge.core.ids import JobKey, OwnedJob, ProcessId
from tidegauge.core.incidents.actions import (
    BREAKERS,
    USER_BREAKER,
    ActionKind,
    Decision,
    DecisionRecord,
    Disposition,
    Outcome,
)
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge_scheduler_hooks.policy.models import carries_out


class PolicyMark(NamedTuple):
    """The policy's memory of one decision."""

    decision_id: str
    incident: int
    rule: str
    rung: int
    action: ActionKind
    disposition: Disposition
    brake: str | None
    job: JobKey
    tenant: Tenant
    incarnation: str
    decided_s: float
    real: bool
    """Whether its mode would have let it be carried out."""
    reason: str
    breaker_reset_s: float | None
    """The last reset of the breakers before a decision that one of them withheld."""
    covers: frozenset[ProcessId] = frozenset()
    """Of a checkpoint: the processes whose state it holds."""
    outcome: Outcome | None = None
    finished_s: float | None = None

    @property
    def under_way(self) -> bool:
        """To be carried out, and not finished."""
        return self.disposition is Disposition.DO and self.outcome is None

    @property
    def done_s(self) -> float | None:
        """The time at which it was done, or would have been done; ``None``: it was not."""
        if self.disposition is Disposition.WOULD:
            return self.decided_s
        return self.ended_s if self.outcome is Outcome.DONE else None

    @property
    def ended_s(self) -> float:
        """The time at which it was over, however it ended."""
        return self.decided_s if self.finished_s is None else self.finished_s

    def counts(self, *, real: bool) -> bool:
        """Whether a decision that is real, or is not, may rest on it."""
        return self.disposition is Disposition.DO or (self.disposition is Disposition.WOULD and not real)


def mark_of(decision: Decision) -> PolicyMark:
    withheld_by_breaker = decision.brake in BREAKERS
    return PolicyMark(
        decision_id=decision.decision_id,
        incident=decision.incident.number,
        rule=decision.rule,
        rung=decision.rung,
        action=decision.action,
        disposition=decision.disposition,
        brake=decision.brake,
        job=decision.target.job,
        tenant=tenant_of(decision.target.job),
        incarnation=decision.target.incarnation,
        decided_s=decision.decided_s,
        real=carries_out(decision.mode, decision.action),
        reason=decision.reason,
        breaker_reset_s=decision.parameters.get("breaker_reset_s") if withheld_by_breaker else None,
        covers=decision.target.processes if decision.action is ActionKind.CHECKPOINT else frozenset(),
    )


# A mapping that is a value: with more items it is another one, and nearly all of it is shared.

K = TypeVar("K")
V = TypeVar("V")


class Layers(Mapping[K, V]):
    """An immutable mapping: a large dict that is shared, and a small one of late items that is copied. The two are
    merged once the small one has grown to the root of the large one, so an item costs about that many steps, not all of
    them."""

    __slots__ = ("_late", "_most")

    def __init__(self, most: Mapping[K, V] | None = None, late: Mapping[K, V] | None = None) -> None:
        """Neither mapping may be changed from then on."""
        self._most: Mapping[K, V] = {} if most is None else most
        self._late: Mapping[K, V] = {} if late is None else late

    def with_items(self, items: Mapping[K, V]) -> Layers[K, V]:
        """A mapping with these items, which replace those of the same keys."""
        late = {**self._late, **items}
        return Layers({**self._most, **late}) if len(late) ** 2 > len(self._most) else Layers(self._most, late)

    def __getitem__(self, key: K) -> V:
        return self._late[key] if key in self._late else self._most[key]

    def __contains__(self, key: object) -> bool:
        return key in self._late or key in self._most

    def __iter__(self) -> Iterator[K]:
        yield from self._most
        yield from (key for key in self._late if key not in self._most)

    def __len__(self) -> int:
        return len(self._most) + sum(key not in self._most for key in self._late)


UNDONE = frozenset({Outcome.SUPERSEDED, Outcome.STOPPED})
"""Outcomes of decisions that had no effect at all."""


class _Opening(NamedTuple):
    """A breaker's opening between two resets."""

    real: bool
    tenant: Tenant | None
    """The user; ``None``: the breaker of the whole cluster."""
    reset_s: float | None


@dataclass(frozen=True)
class _Index:
    """Marks by the keys of look-ups. An immutable value: with one more mark it is another, most of which is shared."""

    by_incident: Layers[int, Mapping[str, PolicyMark]] = field(default_factory=Layers)
    by_job: Layers[OwnedJob, Mapping[str, PolicyMark]] = field(default_factory=Layers)
    acting: Layers[int, Mapping[str, PolicyMark]] = field(default_factory=Layers)
    """Marks that change something about a job, or would, by the hour of the decision: limits need the last ones."""
    openings: Mapping[_Opening, PolicyMark] = field(default_factory=dict)
    """The first mark that a breaker withheld: it is open from then on, and later ones add nothing."""

    def with_marks(self, marks: Collection[PolicyMark]) -> _Index:
        """An index with these marks, which replace those of the same decision."""
        acting = [mark for mark in marks if mark.action.is_acting and mark.disposition is not Disposition.WITHHELD]
        openings = dict(self.openings)
        for mark in marks:
            opening = _opening(mark)
            if opening is not None and (opening not in openings or mark.decided_s < openings[opening].decided_s):
                openings[opening] = mark
        return _Index(
            self.by_incident.with_items(_grouped(self.by_incident, marks, lambda mark: mark.incident)),
            self.by_job.with_items(_grouped(self.by_job, marks, lambda mark: mark.job.owned)),
            self.acting.with_items(_grouped(self.acting, acting, lambda mark: _hour(mark.decided_s))),
            openings,
        )


def _grouped(
    known: Mapping[K, Mapping[str, PolicyMark]], marks: Iterable[PolicyMark], key_of: Callable[[PolicyMark], K]
) -> dict[K, Mapping[str, PolicyMark]]:
    """The groups that these marks change, each copied once however many of them are in it."""
    changed: dict[K, dict[str, PolicyMark]] = {}
    for mark in marks:
        key = key_of(mark)
        if key not in changed:
            changed[key] = dict(known.get(key, {}))
        changed[key][mark.decision_id] = mark
    return dict(changed)


def _hour(at_s: float) -> int:
    return int(at_s // 3600.0)


def _opening(mark: PolicyMark) -> _Opening | None:
    """The opening of the breaker that withheld it, if one did."""
    if mark.brake not in BREAKERS:
        return None
    return _Opening(mark.real, mark.tenant if mark.brake == USER_BREAKER else None, mark.breaker_reset_s)


_EMPTY = _Index()


@dataclass(frozen=True)
class PolicyState:
    """An immutable value: every ``with_…`` returns another. ``paused`` and ``breaker_reset_s`` come from outside."""

    marks: Layers[str, PolicyMark] = field(default_factory=Layers)
    """By decision id."""
    paused: str | None = None
    """Why nothing at all is to be done, in a person's words; ``None``: not paused."""
    breaker_reset_s: float | None = None
    """When a person last closed the breakers, on the policy clock."""
    index: _Index | None = field(default=None, compare=False, repr=False)
    """The index of ``marks``, carried along so that a decision needs no scan; ``None``: made when it is needed."""

    def with_decisions(self, decisions: Iterable[Decision]) -> PolicyState:
        """After these decisions were written down."""
        return self._with({decision.decision_id: mark_of(decision) for decision in decisions})

    def with_records(self, records: Iterable[DecisionRecord]) -> PolicyState:
        """After news from the audit, in any order: decisions, or how they ended. A start takes ``Audit.memory``."""
        news = {
            record.decision.decision_id: mark_of(record.decision)._replace(
                outcome=record.outcome, finished_s=record.finished_s
            )
            for record in records
        }
        return self._with(news)

    def forget(self, before_s: float, *, open_incidents: Collection[int]) -> PolicyState:
        """The state without decisions made before ``before_s``, which is at least ``MEMORY_S`` ago. Kept are those of
        open incidents, unfinished ones, and the decision at which each open breaker opened; not of a breaker that only
        would have opened: it holds nothing back, and is never reset."""
        openings = {mark.decision_id for mark in self._open_breakers.values() if mark.real}
        kept = {
            name: mark
            for name, mark in self.marks.items()
            if mark.decided_s >= before_s or mark.incident in open_incidents or mark.under_way or name in openings
        }
        if len(kept) == len(self.marks):
            return self
        return replace(self, marks=Layers(kept), index=_EMPTY.with_marks(kept.values()))

    @property
    def breaker(self) -> str | None:
        """Why the circuit breaker holds back all actions, and since when; ``None``: it is closed. Effects in another
        mode than ``act`` do not count."""
        opening = self.breaker_opening(real=True)
        return None if opening is None else _since_when(opening)

    @property
    def user_breakers(self) -> tuple[str, ...]:
        """The reasons of the open breakers of single users' jobs, the oldest first."""
        return tuple(map(_since_when, self.user_breaker_openings(real=True)))

    def breaker_opening(self, *, real: bool, tenant: Tenant | None = None) -> PolicyMark | None:
        """The decision at which the breaker of the whole cluster, or of one user's jobs, opened, if it has not been
        reset since."""
        return self._index.openings.get(_Opening(real, tenant, self.breaker_reset_s))

    def user_breaker_openings(self, *, real: bool) -> list[PolicyMark]:
        """The openings of all users' breakers, the oldest first."""
        found = [mark for which, mark in self._open_breakers.items() if which.real == real and which.tenant is not None]
        return sorted(found, key=lambda mark: mark.decided_s)

    def of_incident(self, number: int) -> tuple[PolicyMark, ...]:
        return tuple(self._index.by_incident.get(number, {}).values())

    def of_job(self, job: JobKey) -> tuple[PolicyMark, ...]:
        """All decisions on a job, over its attempts."""
        return tuple(self._index.by_job.get(job.owned, {}).values())

    def is_busy(self, job: JobKey) -> bool:
        """Whether something is being carried out on the job."""
        return any(mark.under_way for mark in self.of_job(job))

    def is_over(self, job: JobKey, incarnation: str, *, real: bool) -> bool:
        """Whether Tidegauge ended this run of the job."""
        return any(
            mark.action.is_stop
            and mark.done_s is not None
            and mark.counts(real=real)
            and (mark.job.whole, mark.incarnation) == (job.whole, incarnation)
            for mark in self.of_job(job)
        )

    def requeues(self, job: JobKey, *, since_s: float, real: bool) -> int:
        """The number of our requeues of the job; failed ones count, because they may have been done."""
        return sum(
            mark.action is ActionKind.REQUEUE
            and mark.outcome not in UNDONE
            and mark.counts(real=real)
            and mark.decided_s > since_s
            for mark in self.of_job(job)
        )

    def acting(self, *, since_s: float, real: bool) -> Iterable[PolicyMark]:
        """Decisions to change something about a job that were made after ``since_s``, whatever their outcome."""
        hours = (marks.values() for hour, marks in self._index.acting.items() if hour >= _hour(since_s))
        return (mark for marks in hours for mark in marks if mark.decided_s > since_s and mark.counts(real=real))

    def _with(self, news: Mapping[str, PolicyMark]) -> PolicyState:
        """The first outcome of a decision stays."""
        changed = {
            name: mark
            for name, mark in news.items()
            if name not in self.marks or (self.marks[name].outcome is None and mark.outcome is not None)
        }
        if not changed:
            return self
        return replace(self, marks=self.marks.with_items(changed), index=self._index.with_marks(changed.values()))

    @cached_property
    def _index(self) -> _Index:
        return _EMPTY.with_marks(self.marks.values()) if self.index is None else self.index

    @property
    def _open_breakers(self) -> dict[_Opening, PolicyMark]:
        return {which: mark for which, mark in self._index.openings.items() if which.reset_s == self.breaker_reset_s}


def _since_when(opening: PolicyMark) -> str:
    return f"{opening.reason}, at {datetime.fromtimestamp(opening.decided_s, timezone.utc):%Y-%m-%d %H:%M} UTC"
