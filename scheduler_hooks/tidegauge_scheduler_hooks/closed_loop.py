"""One turn of the closed loop: jobs -> incidents -> facts -> decisions -> actions, each written down before the next.

Everything that decides is pure and elsewhere (``core.incidents.tracker``, ``policy``); everything that acts is behind
``CarryOut``. This module sets their order, and handles a database or scheduler that is down: incidents go on in memory,
and nothing is decided that could not be written down.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import NamedTuple, Protocol

from tidegauge.core.ids import DeviceUuid, JobKey
from tidegauge.core.incidents import ChangeKind, Incident, IncidentCause, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import (
    AuditError,
    Decision,
    DecisionRecord,
    DecisionStatus,
    Disposition,
    LoopStatus,
    Outcome,
    SchedulerFacts,
    Switches,
)
from tidegauge.core.incidents.evidence import EvidenceNews
from tidegauge.core.incidents.loop_figures import SlurmLabels
from tidegauge.core.incidents.observations import living_culprits
from tidegauge.core.incidents.steps import DEFAULT_RULES, IncidentRules
from tidegauge.core.incidents.tracker import IncidentTracker
from tidegauge.core.job_records.record import JobEvent
from tidegauge.core.jobs.slurm import SCHEDULER as SLURM
from tidegauge.core.jobs.tenants import Tenant, tenant_of
from tidegauge.core.oom import explanation_for
from tidegauge.core.views import JobView, RankSummary
from tidegauge_scheduler_hooks.carry_out import CarryOut
from tidegauge_scheduler_hooks.carry_out_steps import CarryOutTimes, Steps
from tidegauge_scheduler_hooks.facts import end_with, job_facts, surroundings
from tidegauge_scheduler_hooks.policy.decide import decide
from tidegauge_scheduler_hooks.policy.files import PolicySource
from tidegauge_scheduler_hooks.policy.models import MEMORY_S, Policy
from tidegauge_scheduler_hooks.policy.state import PolicyMark, PolicyState
from tidegauge_scheduler_hooks.ports import Audit, Messenger, ProcessCommands, SchedulerPort
from tidegauge_scheduler_hooks.scheduler_watch import SchedulerWatch

log = logging.getLogger(__name__)

RECENT_S, MAX_RECENT = 86400.0, 1000
"""Closed incidents are known again after a restart, so that their out-of-memory errors are not new ones."""
FORGET_EVERY_S = 3600.0
MAX_EVENTS = 10_000
"""Kept for ``job_events``; the oldest beyond them are dropped."""
DECIDE_AGAIN_S = 5.0
"""The interval at which an unchanged job is judged again: other limits and a rung's waiting time may have passed."""


def workers_for(schedulers: int) -> int:
    """The number of calls at once: actions, the query of all jobs, the one of ended jobs (``job_ends``), remarks on
    these (``end_remarks``) and incidents that are shown (``shown_incidents``) per scheduler, messages, and conditions
    of nodes. With as many workers no call that hangs delays another, or the loop."""
    times = CarryOutTimes()
    return schedulers * (times.calls_per_scheduler + 4) + times.messages_at_once + 1


class Cluster(Protocol):
    """The coordinator's knowledge of jobs."""

    def jobs(self) -> Sequence[JobView]:
        """Jobs across their nodes, running ones and ones that ended a moment ago."""

    def gpu_usable_bytes(self) -> Mapping[DeviceUuid, int]:
        """CUDA's total of each GPU."""

    def remember_groups(self, incidents: Iterable[Incident]) -> None:
        """Keep the group of ranks that each of these open incidents is about."""

    def evidence(self) -> Mapping[JobKey, Sequence[EvidenceNews]]:
        """Evidence on the ranks of jobs, oldest first; only what is in the database."""


class Incidents(Protocol):
    """The store of incidents. Every method raises ``AuditError``."""

    def save(self, changes: Sequence[IncidentChange]) -> None:
        """All or none; saving the same changes again is harmless."""

    def open_incidents(self) -> Sequence[Incident]:
        """As of the last save."""

    def next_number(self) -> int:
        """The number after the last incident's."""

    def incidents(self, *, open_only: bool, since_s: float, limit: int) -> Sequence[Incident]:
        """Those opened or changed at or after ``since_s``, newest first."""


class ClosedLoop:
    """The loop. Call ``tick`` once a second or so, from one thread; ``status`` and ``held_back`` from any."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        incidents: Incidents,
        audit: Audit,
        schedulers: Mapping[str, SchedulerPort],
        policy: PolicySource,
        switches: Callable[[], Switches],
        now_s: Callable[[], float],
        monotonic_s: Callable[[], float],
        wall_s: Callable[[], float],
        submit: Callable[[Callable[[], None]], object],
        messenger: Messenger | None = None,
        commands: ProcessCommands | None = None,
        rules: IncidentRules = DEFAULT_RULES,
        exemptions: Callable[[], Mapping[JobKey, str]] = dict,
    ) -> None:
        """Go on where the audit ends. ``messenger`` notifies owners beside the schedulers, ``commands`` reach ranks for
        evidence. ``submit`` runs a call in a worker, of which there are ``workers_for`` or more. ``exemptions`` says
        who exempted which attempt of a job (``JobKey.whole``), in the same words for as long as it lasts, and raises
        ``AuditError``.

        Raises ``AuditError``."""
        self._cluster = cluster
        self._incidents = incidents
        self._policy = policy
        self._switches = switches
        self._exemptions = exemptions
        self._now_s = now_s
        still_open = incidents.open_incidents()
        cluster.remember_groups(still_open)
        self._tracker = IncidentTracker(
            still_open, next_number=incidents.next_number(), explain_oom=_explained, rules=rules,
            closed=incidents.incidents(open_only=False, since_s=now_s() - RECENT_S, limit=MAX_RECENT),
        )  # fmt: skip
        self._state = PolicyState().with_records(audit.memory(since_s=now_s() - MEMORY_S))
        self._forgot_s = float("-inf")
        self._judged: dict[int, _Judged] = {}
        """The last judgement of each incident, by number."""
        self._audit = WatchedAudit(audit)
        self._unsaved: list[IncidentChange] = []
        self._store_problem: str | None = None
        self._owner_reachable = messenger is not None
        self._open: dict[int, Incident] = {incident.number: incident for incident in self._tracker.incidents}
        self._events = deque([_opening(incident) for incident in still_open], MAX_EVENTS)
        self._crowded: Set[Tenant] = frozenset()
        self._lock = threading.Lock()
        self._watch = SchedulerWatch(schedulers, submit=submit, monotonic_s=monotonic_s)
        steps = Steps(
            self._audit, schedulers, now_s=now_s, wall_s=wall_s, held_back=self.held_back,
            messenger=messenger, commands=commands,
        )  # fmt: skip
        self._carry_out = CarryOut(steps, submit=submit)

    def tick(self) -> None:
        """Take one turn. Expected failures raise nothing."""
        now_s = self._now_s()
        jobs = tuple(self._cluster.jobs())
        usable_bytes = self._cluster.gpu_usable_bytes()
        self._told(
            self._tracker.update(jobs, now_s=now_s, gpu_total_bytes=usable_bytes, evidence=self._cluster.evidence())
        )
        self._tell_crowded()
        with self._lock:
            self._open = {incident.number: incident for incident in self._tracker.incidents}
        try:
            self._save()
            self._decide_all(jobs, usable_bytes, now_s)
            self._store_problem = None
        except AuditError as error:
            if self._store_problem is None:
                log.error("no decisions are made while the database is unavailable: %s", error)
            self._store_problem = str(error)
        finally:
            # Also after a defect: what was begun must be seen to its end.
            self._carry_out.tick()

    def status(self) -> LoopStatus:
        policy, switches = self._policy.current(), self._switches()
        state = replace(self._state, breaker_reset_s=switches.breaker_reset_s)
        return LoopStatus(
            mode=policy.mode,
            policy_file=None if self._policy.path is None else str(self._policy.path),
            policy_problem=self._policy.problem,
            paused=switches.paused,
            breaker=state.breaker,
            user_breakers=state.user_breakers,
            store_problem=self._store_problem,
            scheduler_problems=self._watch.problems(),
            incidents_open=len(self._open),
            under_way=self._carry_out.under_way(),
        )

    def slurm_labels(self) -> Mapping[JobKey, SlurmLabels]:
        """The labels that Slurm reported for present jobs."""
        known = self._watch.last_facts(SLURM)
        return {job: SlurmLabels(facts.partition, facts.account, facts.array_name) for job, facts in known.items()}

    def job_events(self) -> Sequence[JobEvent]:
        """Incidents opened and actions done since the last call, and all open incidents at the first one; for the
        thread that calls ``tick``."""
        events, self._events = tuple(self._events), deque(maxlen=MAX_EVENTS)
        return events

    def open_incidents(self) -> Sequence[Incident]:
        """As of the last turn."""
        with self._lock:
            return tuple(self._open.values())

    def held_back(self, record: DecisionRecord) -> str | None:
        """Why the decision must not be carried out any more, or ``None``; asked right before any action."""
        decision, switches = record.decision, self._switches()
        if switches.paused is not None:
            return f"actions are paused: {switches.paused}"
        if not decision.action.is_acting:
            return None
        if self._policy.current().mode != "act":
            return f"the policy mode is now {self._policy.current().mode}"
        try:
            exempted = self._exemptions().get(decision.target.job.whole)
        except AuditError as error:
            return f"whether the job is exempt cannot be read: {error}"
        if exempted is not None:
            return f"the job is exempt: {exempted}"
        state = replace(self._state, breaker_reset_s=switches.breaker_reset_s)
        tenant = tenant_of(decision.target.job)
        opening = state.breaker_opening(real=True) or state.breaker_opening(real=True, tenant=tenant)
        if opening is not None:
            return f"the circuit breaker is open: {opening.reason}"
        with self._lock:
            incident = self._open.get(decision.incident.number)
        if incident is None or incident.state is not IncidentState.OPEN:
            return f"incident {decision.incident.number} is closed"
        if incident.key.cause is not decision.incident.key.cause:
            return f"evidence now says that incident {incident.number} is {incident.key.cause.value}"
        jobs = self._cluster.jobs()
        return _no_culprit_lives(incident, jobs) or (_began_since(decision, jobs) if decision.action.is_stop else None)

    def _tell_crowded(self) -> None:
        crowded = self._tracker.crowded
        for who in crowded - self._crowded:
            log.warning("%s has reached the limit of open incidents for one user: no further ones are opened", who)
        self._crowded = crowded

    def _told(self, changes: Sequence[IncidentChange]) -> None:
        """Keep changes to be saved. A newer update replaces one that is not saved yet, or a database that is down for
        long would fill the memory: each holds the findings of all ranks."""
        numbers = {change.incident.number for change in changes}
        kept = [
            one for one in self._unsaved if one.kind is not ChangeKind.UPDATED or one.incident.number not in numbers
        ]
        self._unsaved = [*kept, *changes]
        self._events.extend(_opening(change.incident) for change in changes if change.kind is ChangeKind.OPENED)

    def _save(self) -> None:
        if self._unsaved:
            self._incidents.save(self._unsaved)
            for change in self._unsaved:
                log.info("incident %d %s", change.incident.number, change.kind.value)
            self._unsaved = []

    def _decide_all(self, jobs: Sequence[JobView], usable_bytes: Mapping[DeviceUuid, int], now_s: float) -> None:
        news = self._audit.news()
        self._state = self._state.with_records(news)
        self._events.extend(
            JobEvent(record.decision.target.job.whole, action=record.decision.action)
            for record in news
            if record.outcome is Outcome.DONE
        )
        switches, exempt = self._switches(), self._exemptions()
        state = replace(self._state, paused=switches.paused, breaker_reset_s=switches.breaker_reset_s)
        views = {job.key: job for job in jobs}
        incidents = [incident for incident in self._tracker.incidents if incident.key.job in views]
        # All of them, so that something is known of a job by the time it has its first incident, which may be its last.
        self._watch.ask(views.values())
        policy = self._policy.current()
        around = surroundings(jobs, usable_bytes)
        judged: dict[int, _Judged] = {}
        for incident in sorted(incidents, key=_most_urgent_first):
            job = views[incident.key.job]
            if not self._watch.is_known(job):
                continue
            said = self._watch.facts(job)
            exempted, marks = exempt.get(job.key.whole), state.of_job(job.key)
            judgement = _Judged(job, _what_counts(incident), said, policy, switches, exempted, marks, now_s)
            before = self._judged.get(incident.number)
            if before is not None and judgement.is_repetition_of(before):
                judged[incident.number] = before
                continue
            judged[incident.number] = judgement
            try:
                facts = replace(
                    job_facts(job, around, said),
                    owner_reachable=self._owner_reachable,
                    culprits=living_culprits(incident, job),
                    exempted=exempted,
                )
                decisions, after = decide(incident, facts, policy, state, now_s=now_s)
            except Exception:
                # What is odd about one job must not cost the others their decisions.
                log.exception("no decision could be made for incident %d", incident.number)
                continue
            if decisions:
                self._audit.write_ahead(decisions)
                for decision in decisions:
                    _log_decision(decision)
            state = after
        self._state, self._judged = state, judged
        if now_s - self._forgot_s >= FORGET_EVERY_S:
            self._forgot_s = now_s
            self._state = state.forget(now_s - MEMORY_S, open_incidents={one.number for one in self._tracker.incidents})


def _opening(incident: Incident) -> JobEvent:
    return JobEvent(incident.key.job.whole, incident=incident.number)


def _no_culprit_lives(incident: Incident, jobs: Sequence[JobView]) -> str | None:
    """Why nothing is done any more: the affected ranks have ended since the decision. An out-of-memory error has done
    its harm, whichever rank lives."""
    job = next((view for view in jobs if view.ranks and view.key == incident.key.job), None)
    if job is None or incident.key.cause is IncidentCause.OUT_OF_MEMORY or living_culprits(incident, job):
        return None
    return f"no rank of incident {incident.number} is both running and affected now"


def _began_since(decision: Decision, jobs: Sequence[JobView]) -> str | None:
    """Why a stop has to wait: it would end ranks that were unknown when it was decided, and that have not saved."""
    known, job = decision.target.processes, decision.target.job
    mine = next((view for view in jobs if view.ranks and view.key == job), None)
    for view in () if mine is None else end_with(mine, jobs):
        if known.isdisjoint(rank.process for rank in view.ranks if rank.alive):
            return f"more ranks of job {job.job_id} started after the decision ({view.group_name})"
    return None


class _Judged(NamedTuple):
    """The inputs of one judgement of an incident, as far as they are of this job, and its time."""

    job: JobView
    incident: tuple[object, ...]
    said: SchedulerFacts | None
    policy: Policy
    switches: Switches
    exempted: str | None
    marks: tuple[PolicyMark, ...]
    at_s: float

    def is_repetition_of(self, before: _Judged) -> bool:
        """Whether nothing has changed since, and it is not long ago."""
        if before.job is not self.job or self.at_s - before.at_s >= DECIDE_AGAIN_S:
            return False
        return before[1:-1] == self[1:-1]


def _explained(rank: RankSummary, job: JobView) -> str:
    """The explanation of an OOM. A defect over one job's odd figures must not cost the others their incidents."""
    try:
        return explanation_for(rank, job)
    except Exception:
        log.exception("an OOM of job %s could not be explained", job.job_id)
        return f"rank {rank.identity.rank} ran out of memory; its figures could not be interpreted"


def _most_urgent_first(incident: Incident) -> tuple[int, float, int]:
    oom = incident.seconds_to_oom
    return -incident.severity.level, float("inf") if oom is None else oom.low, incident.number


def _what_counts(incident: Incident) -> tuple[object, ...]:
    """The inputs of decisions beside the figures, which come with a new view of the job."""
    return incident.state, incident.severity, incident.evidence, incident.stale, incident.ranks, incident.flaps


def _log_decision(decision: Decision) -> None:
    job: JobKey = decision.target.job
    level = logging.WARNING if decision.disposition is Disposition.DO else logging.INFO
    log.log(
        level, "%s: %s %s on job %s attempt %d: %s", decision.decision_id, decision.disposition.value,
        decision.action.value, job.job_id, job.attempt, decision.reason,
    )  # fmt: skip


class WatchedAudit:
    """``Audit`` that also keeps what has changed since the last look, so that the policy's state follows without
    reading the whole audit again every second.

    The database counts, not the answer of a call: a commit whose answer was lost has happened all the same."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._unfinished: dict[str, Decision] = {}
        """As of the last look, less those finished since then."""
        self._news: queue.SimpleQueue[DecisionRecord] = queue.SimpleQueue()

    def write_ahead(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        return self._audit.write_ahead(decisions)

    def begin(self, decision_id: str, *, at_s: float) -> None:
        self._audit.begin(decision_id, at_s=at_s)

    def finish(self, decision_id: str, outcome: Outcome, detail: str, *, at_s: float) -> None:
        self._audit.finish(decision_id, outcome, detail, at_s=at_s)
        decision = self._unfinished.pop(decision_id, None)
        if decision is not None:
            log.info("decision %s: %s: %s", decision_id, outcome.value, detail)
            self._news.put(
                DecisionRecord(decision, DecisionStatus.FINISHED, outcome, detail, finished_s=at_s, starts=1)
            )

    def unfinished(self) -> Sequence[DecisionRecord]:
        records = self._audit.unfinished()
        now = {record.decision.decision_id: record.decision for record in records}
        # A list first: workers take from it. What is told twice is harmless, the first outcome stays.
        ended = [decision for name, decision in list(self._unfinished.items()) if name not in now]
        if ended:
            since_s = min(decision.decided_s for decision in ended)
            for record in self._audit.each(since_s=since_s):
                self._news.put(record)
        for record in records:
            if record.decision.decision_id not in self._unfinished:
                self._news.put(record)
        self._unfinished = now
        return records

    def each(self, *, since_s: float) -> Iterator[DecisionRecord]:
        return self._audit.each(since_s=since_s)

    def memory(self, *, since_s: float) -> Iterator[DecisionRecord]:
        return self._audit.memory(since_s=since_s)

    def news(self) -> list[DecisionRecord]:
        """Decisions that were made or finished since the last call."""
        found: list[DecisionRecord] = []
        while not self._news.empty():  # the loop alone takes from it
            found.append(self._news.get())
        return found
