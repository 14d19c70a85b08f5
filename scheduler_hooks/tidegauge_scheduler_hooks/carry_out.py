"""Hands decisions to workers, one step (``carry_out_steps``) at a time.

The audit holds what is to be done and how far it is: ``CarryOut`` may be thrown away at any moment, and another one
goes on from there. Only one of them works on an audit at a time.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tidegauge.core.ids import OwnedJob
from tidegauge.core.incidents.actions import ActionKind, Decision, DecisionRecord, DecisionStatus, UnderWay
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge_scheduler_hooks.carry_out_steps import CarryOutTimes, Stage, StepProgress, Steps
from tidegauge_scheduler_hooks.ports import AuditError

log = logging.getLogger(__name__)


@dataclass
class _Work:
    """A decision in progress; times in seconds of the policy clock."""

    decision: Decision
    since_s: float
    progress: StepProgress
    worker_since_s: float | None = None
    """The time at which a worker took it; ``None``: no worker has it."""
    called_slow: bool = False
    audit_problem: str | None = None
    """Why the next record could not be written."""


class CarryOut:
    """Carries out decisions. Call ``tick`` every second or so, from one thread; ``under_way`` from any.

    ``submit`` runs a call in a worker, some time soon; the pool needs more workers than ``calls_per_scheduler`` times
    the schedulers plus ``messages_at_once``, so that calls that hang leave some free."""

    def __init__(self, steps: Steps, *, submit: Callable[[Callable[[], None]], object]) -> None:
        self._steps = steps
        self._audit = steps.audit
        self._now_s = steps.now_s
        self._times = steps.times
        self._submit = submit
        self._turns = FairCalls(steps.times)
        self._works: dict[str, _Work] = {}
        self._lock = threading.Lock()
        self._audit_fails = False

    def tick(self) -> None:
        """Hand out the next step of every decision that is due. Waits for the audit, never for a scheduler."""
        # Who is busy is noted before the audit is read: what a worker ends in between is then not handed out again.
        with self._lock:
            busy = {name: work for name, work in self._works.items() if work.worker_since_s is not None}
        self._tell_slow(busy)
        try:
            records = self._audit.unfinished()
        except AuditError as error:
            if not self._audit_fails:
                log.error("no actions are carried out while the audit cannot be read: %s", error)
            self._audit_fails = True
            return
        self._audit_fails = False
        self._forget_all_but({record.decision.decision_id for record in records} | set(busy))
        for record in self._turns.next(self._due(records, busy), [work.decision for work in busy.values()]):
            self._hand_out(record)

    def under_way(self) -> tuple[UnderWay, ...]:
        """The decisions that are being carried out now, the oldest first."""
        now_s = self._now_s()
        with self._lock:
            works = [replace(work) for work in self._works.values()]
        return tuple(
            UnderWay(
                decision_id=work.decision.decision_id,
                action=work.decision.action,
                job=work.decision.target.job,
                since_s=work.since_s,
                what=_standing(work, now_s),
            )
            for work in sorted(works, key=lambda work: work.since_s)
        )

    def _due(self, records: Sequence[DecisionRecord], busy: Mapping[str, _Work]) -> Iterator[DecisionRecord]:
        """Decisions that may be handed out, started ones first, then the oldest; one acting decision per job."""
        now_s = self._now_s()
        taken = {_job(work.decision) for work in busy.values() if work.decision.action.is_acting}
        for record in sorted(records, key=lambda record: record.status is DecisionStatus.DECIDED):
            decision = record.decision
            if decision.decision_id in busy:
                continue
            if decision.action.is_acting:
                if _job(decision) in taken:
                    continue
                taken.add(_job(decision))
            work = self._works.get(decision.decision_id)
            if work is not None and now_s < work.progress.due_s:
                continue
            yield record

    def _hand_out(self, record: DecisionRecord) -> None:
        now_s, decision = self._now_s(), record.decision
        with self._lock:
            since_s = now_s if record.started_s is None else record.started_s
            work = self._works.setdefault(decision.decision_id, _Work(decision, since_s, StepProgress()))
            work.worker_since_s, work.called_slow = now_s, False
        try:
            self._submit(lambda: self._work(record, work))
        except Exception:
            # No worker will run it: have it handed out again.
            log.exception("no worker for decision %s", decision.decision_id)
            with self._lock:
                work.worker_since_s = None

    def _work(self, record: DecisionRecord, work: _Work) -> None:
        """Run one step in a worker, and write the outcome if that was the last step. An outcome that cannot be written
        is kept and written again later, without another call to the scheduler."""
        progress, problem = work.progress, None
        try:
            if progress.outcome is None:
                progress = self._steps.advance(record, progress)
            if progress.outcome is not None:
                self._audit.finish(work.decision.decision_id, progress.outcome, progress.seen, at_s=self._now_s())
        except AuditError as error:
            problem = str(error)
            if work.audit_problem is None:
                log.error("decision %s is on hold: the audit cannot be written: %s", work.decision.decision_id, error)
        except Exception as error:
            # ``advance`` makes outcomes of defects, so this is ``finish``, and the outcome must not be lost over it.
            problem = f"{type(error).__name__}: {error}"
            if work.audit_problem is None:
                log.exception("the outcome of decision %s cannot be written to the audit", work.decision.decision_id)
        finally:
            if problem is not None:
                progress = replace(progress, due_s=self._now_s() + self._times.look_every_s)
            with self._lock:
                work.progress, work.worker_since_s, work.audit_problem = progress, None, problem
                if problem is None and progress.outcome is not None:
                    self._works.pop(work.decision.decision_id, None)

    def _forget_all_but(self, decision_ids: set[str]) -> None:
        """A decision that the audit no longer holds as unfinished is over, whoever wrote that."""
        with self._lock:
            self._works = {name: work for name, work in self._works.items() if name in decision_ids}

    def _tell_slow(self, busy: Mapping[str, _Work]) -> None:
        for decision_id, work in busy.items():
            since_s = work.worker_since_s
            if since_s is None or work.called_slow or self._now_s() - since_s < self._times.slow_call_s:
                continue
            work.called_slow = True
            log.warning(
                "decision %s (%s job %s): adapter %s has not returned for %.0f s; it is not called again until it does",
                decision_id, work.decision.action.value, work.decision.target.job.job_id,
                work.decision.target.scheduler, self._now_s() - since_s,
            )  # fmt: skip


def _job(decision: Decision) -> tuple[str, OwnedJob]:
    """The job in all its attempts: at most one acting decision is carried out on it at a time."""
    return decision.target.scheduler, decision.target.job.owned


def _standing(work: _Work, now_s: float) -> str:
    """The state of a decision in progress, for people."""
    progress = work.progress
    if work.worker_since_s is not None:
        return f"being carried out for {now_s - work.worker_since_s:.0f} s"
    if progress.outcome is not None:
        return f"{progress.outcome.value} ({progress.seen}), not yet written to the audit: {work.audit_problem}"
    if work.audit_problem is not None:
        return f"cannot be written to the audit: {work.audit_problem}"
    if progress.stage is Stage.READY:
        return f"retry in {max(0.0, progress.due_s - now_s):.0f} s: {progress.seen}"
    what = "accepted, not yet confirmed" if progress.stage is Stage.ACCEPTED else "waiting for proof of a checkpoint"
    assert progress.deadline_s is not None
    return f"{what}, {max(0.0, progress.deadline_s - now_s):.0f} s left: {progress.seen}"


MAX_REMEMBERED = 2_000
"""Tenants whose latest turn is known. Of more, those served longest ago are forgotten: they come first anyway."""


class _Turn(NamedTuple):
    """A tenant's place in a lane."""

    lane: str | None
    """A scheduler, or ``None`` for messages and evidence of all schedulers: decisions that share a number of calls at
    once. A message that hangs never takes the place of a checkpoint."""
    tenant: Tenant

    @classmethod
    def of(cls, decision: Decision) -> _Turn:
        is_aside = decision.action in (ActionKind.NOTIFY, ActionKind.SNAPSHOT)
        return cls(None if is_aside else decision.target.scheduler, tenant_of(decision.target.job))


class FairCalls:
    """Shares calls fairly, because a job may let its calls hang. In each lane the tenant with the fewest calls in
    progress comes first, then the one served longest ago; no tenant holds all calls of a lane."""

    def __init__(self, times: CarryOutTimes) -> None:
        self._times = times
        self._served: dict[_Turn, int] = {}
        """The number of each one's last turn, from a counter; the one served longest ago first."""
        self._now = itertools.count(1)

    def __len__(self) -> int:
        return len(self._served)

    def next(self, waiting: Iterable[DecisionRecord], busy: Iterable[Decision]) -> Iterator[DecisionRecord]:
        """The decisions to hand out of ``waiting`` while ``busy`` are in progress. Decisions of one tenant, and of
        tenants that are otherwise equal, keep the given order."""
        lanes: dict[str | None, dict[_Turn, deque[DecisionRecord]]] = {}
        for record in waiting:
            turn = _Turn.of(record.decision)
            lanes.setdefault(turn.lane, {}).setdefault(turn, deque()).append(record)
        calls = Counter(map(_Turn.of, busy))
        for lane, queues in lanes.items():
            most = self._times.messages_at_once if lane is None else self._times.calls_per_scheduler
            free = most - sum(count for turn, count in calls.items() if turn.lane == lane)
            for _ in range(free):
                able = [turn for turn, queue in queues.items() if queue and calls[turn] < max(1, most - 1)]
                if not able:
                    break
                turn = min(able, key=lambda turn: (calls[turn], self._served.get(turn, 0)))
                calls[turn] += 1
                self._note(turn)
                yield queues[turn].popleft()

    def _note(self, turn: _Turn) -> None:
        self._served.pop(turn, None)
        self._served[turn] = next(self._now)
        if len(self._served) > MAX_REMEMBERED:
            del self._served[next(iter(self._served))]
