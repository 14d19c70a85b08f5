"""A store of incidents and decisions in memory, and a story to put into it: for tests of what people see of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

from sample_views import MIB, NOW_S
from scheduler_values import decision, facts, finding, incident
from tidegauge.cluster.api.act_api import ActPages
from tidegauge.cluster.api.grade_api import GradePages
from tidegauge.cluster.api.http_api import HttpApi, json_route
from tidegauge.cluster.api.loop_api import loop_routes
from tidegauge.cluster.api.loop_reads import LoopStore
from tidegauge.cluster.api.memory_api import evidence_routes
from tidegauge.cluster.api.profile_api import ProfileAsks, ProfilePages
from tidegauge.cluster.api.record_api import RecordPages
from tidegauge.cluster.store import Store, open_store, sqlite_url
from tidegauge.cluster.views import AskedProfile, ProfileProblem
from tidegauge.core.evidence import Evidence
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import (
    MAX_FINDINGS,
    ChangeKind,
    Closure,
    Incident,
    IncidentCause,
    IncidentChange,
    IncidentState,
)
from tidegauge.core.incidents.actions import (
    ActionKind,
    AuditError,
    DecisionRecord,
    DecisionStatus,
    Disposition,
    LoopStatus,
    Outcome,
)
from tidegauge.core.incidents.acts import ActOutcome, PersonAct
from tidegauge.core.incidents.grades import GradeAnswer, GradedIncident
from tidegauge.core.incidents.loop_figures import OpenIncident
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobRecord
from tidegauge.core.job_records.search import EVERY_ENDED, RecordFilter, RecordSought
from tidegauge.core.jobs.right_size import GpuUsage, UsageBy
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.verdicts import Band, Severity
from tidegauge.core.views import JobView
from tidegauge.http.access import OPEN_DOOR, LoginDoor, Owned

T = TypeVar("T")


def _newest(values: Sequence[T], limit: int) -> Sequence[T]:
    return values[max(len(values) - limit, 0) :]


def _shortened(change: IncidentChange, most: int) -> IncidentChange:
    return change._replace(incident=change.incident.shortened(most))


@dataclass
class FakeIncidents:
    """``loop_reads.IncidentReads``: as of the last change of each incident."""

    story: list[IncidentChange] = field(default_factory=list)
    memories: dict[int, Sequence[RankMemory]] = field(default_factory=dict)

    def memory(self, number: int) -> Sequence[RankMemory]:
        return self.memories.get(number, ())

    def each(
        self, *, open_only: bool, since_s: float | None, limit: int | None, user_name: Owned | None = None
    ) -> Iterator[Incident]:
        latest = {change.incident.number: change.incident for change in self.story}
        found = [
            one
            for one in latest.values()
            if one.closed_unix_s is None or (not open_only and one.closed_unix_s >= (since_s or 0.0))
            if user_name in (None, one.user_name)
        ]
        return iter(sorted(found, key=lambda one: -one.number)[:limit])

    def incident(self, number: int) -> Incident | None:
        return next((change.incident for change in reversed(self.story) if change.incident.number == number), None)

    def lines(
        self, number: int, *, most: int | None = None, most_figures: int | None = None
    ) -> Iterator[IncidentChange]:
        room = {True: most_figures, False: most}
        chosen = list[IncidentChange]()
        for change in reversed(self.story):
            is_figures, left = change.kind is ChangeKind.UPDATED, room[change.kind is ChangeKind.UPDATED]
            if change.incident.number == number and left != 0:
                room[is_figures] = None if left is None else left - 1
                chosen.append(_shortened(change, MAX_FINDINGS))
        return reversed(chosen)

    def count_left_out(self, number: int, *, most: int, most_figures: int) -> int:
        shown = self.lines(number, most=most, most_figures=most_figures)
        return len(list(self.lines(number))) - len(list(shown))

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Incident]:
        found = self.each(open_only=False, since_s=None, limit=None)
        return [one for one in found if one.key.job.whole == job.whole][:limit]

    def namespaces(self) -> frozenset[str]:
        return frozenset()

    def has_owner(self, job: JobKey, user_name: Owned) -> bool:
        return {one.incident.user_name for one in self.story if one.incident.key.job == job} == {user_name}

    def changes(
        self, *, since_s: float, limit: int, user_name: Owned | None = None, most_findings: int | None = None
    ) -> Sequence[IncidentChange]:
        found = [change for change in self.story if change.at_unix_s >= since_s]
        told = _newest([change for change in found if user_name in (None, change.incident.user_name)], limit)
        each = MAX_FINDINGS if most_findings is None else max(most_findings // max(len(told), 1), 1)
        return [_shortened(change, min(each, MAX_FINDINGS)) for change in told]

    def marks(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Mapping[int, str]:
        found = self.each(open_only=False, since_s=since_s, limit=None, user_name=user_name)
        open_first = sorted(found, key=lambda one: (not one.is_open, -one.number))[:limit]
        return {one.number: f"{one.updated_unix_s} {one.state.value}" for one in open_first}

    def open_figures(self, jobs: Collection[JobKey]) -> Sequence[tuple[JobKey | None, OpenIncident]]:
        found = self.each(open_only=True, since_s=None, limit=None)
        return [
            (
                one.key.job if one.key.job in jobs else None,
                OpenIncident(one.number, one.key.cause, one.severity, one.opened_unix_s),
            )
            for one in found
        ]

    def totals(self) -> Mapping[IncidentCause, int]:
        return Counter(change.incident.key.cause for change in self.story if change.kind is ChangeKind.OPENED)


@dataclass
class FakeAudit:
    """``loop_reads.AuditReads``."""

    made: list[DecisionRecord] = field(default_factory=list)

    def each(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Iterator[DecisionRecord]:
        return iter(_newest(self._since(since_s, user_name), limit))

    def count(self, *, since_s: float, user_name: Owned | None = None) -> int:
        return len(self._since(since_s, user_name))

    def _since(self, since_s: float, user_name: Owned | None) -> Sequence[DecisionRecord]:
        found = [record for record in self.made if record.decision.decided_s >= since_s]
        return [record for record in found if user_name in (None, record.decision.incident.user_name)]

    def records_of(self, number: int) -> Sequence[DecisionRecord]:
        return [record for record in self.made if record.decision.incident.number == number]

    def action_totals(self) -> Mapping[tuple[str, str], int]:
        return Counter(
            (
                record.decision.action.value,
                record.outcome.value if record.outcome else record.decision.disposition.value,
            )
            for record in self.made
            if record.status is DecisionStatus.FINISHED
        )

    def last_finished(self, jobs: Collection[JobKey], *, since_s: float) -> Mapping[tuple[JobKey, str, str], float]:
        last: dict[tuple[JobKey, str, str], float] = {}
        for record in self.made:
            made, key = record.decision, record.decision.incident.key.job
            if key in jobs and made.decided_s >= since_s and record.outcome and record.finished_s is not None:
                about = (key, made.action.value, record.outcome.value)
                last[about] = max(record.finished_s, last.get(about, 0.0))
        return last


@dataclass
class FakeEvidence:
    """``loop_reads.EvidenceReads``."""

    pieces: list[Evidence] = field(default_factory=list)

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[Evidence]:
        return [piece for piece in reversed(self.pieces) if piece.job == job][:limit]


@dataclass
class FakeProfiles:
    """``loop_reads.ProfileReads``."""

    kept: list[RankProfile] = field(default_factory=list)

    def of_job(self, job: JobKey, *, limit: int) -> Sequence[RankProfile]:
        return sorted((one for one in self.kept if one.job == job), key=lambda one: one.rank)[:limit]

    def ranks_of(self, job: JobKey, *, limit: int) -> Sequence[int]:
        return [one.rank for one in self.of_job(job, limit=limit)]

    def of_rank(self, job: JobKey, rank: int) -> RankProfile | None:
        return next((one for one in self.kept if (one.job, one.rank) == (job, rank)), None)

    def newest(self, *, limit: int) -> Sequence[tuple[JobKey, float]]:
        return list({one.job: one.at_unix_s for one in self.kept}.items())[::-1][:limit]


@dataclass
class FakeJobs:
    """``loop_reads.JobReads``."""

    records: list[JobRecord] = field(default_factory=list)
    memories: dict[JobRecord, JobMemory] = field(default_factory=dict)

    def latest(self, jobs: Collection[JobKey]) -> Mapping[JobKey, JobRecord]:
        return {one.job: one for one in self.records if one.job in jobs}

    def namespaces(self) -> frozenset[str]:
        return frozenset()

    def ended(self, which: RecordFilter = EVERY_ENDED, *, limit: int) -> Sequence[JobRecord]:
        found = [one for one in self.records if one.ended_unix_s is not None and _matches(one, which)]
        found = [one for one in found if which.within in (None, one.user_name)]
        return sorted(found, key=lambda one: -(one.ended_unix_s or 0.0))[:limit]

    def count_ended(self, which: RecordFilter = EVERY_ENDED) -> int:
        return len(self.ended(which, limit=1 << 30))

    def starts(self, sought: RecordSought, *, limit: int) -> Sequence[JobRecord]:
        found = [
            one
            for one in self.records
            if sought.job_id in (None, one.job.job_id, one.array)
            and sought.job_name in (None, one.job_name)
            and sought.attempt in (None, one.job.attempt)
            and sought.uid in (None, one.job.uid)
            and sought.user_name in (None, one.user_name)
        ]
        return sorted(found, key=lambda one: -one.started_unix_s)[:limit]

    def memory(self, record: JobRecord) -> JobMemory | None:
        return self.memories.get(record)


def _matches(record: JobRecord, which: RecordFilter) -> bool:
    ended_s = record.ended_unix_s or 0.0
    return (
        which.since_s <= ended_s < (float("inf") if which.until_s is None else which.until_s)
        and which.user_name in (None, record.user_name)
        and which.account in (None, record.account)
        and which.how in (None, record.end)
        and which.job_id in (None, record.job.job_id, record.array)
        and (which.job_name is None or fnmatchcase(record.job_name or "", which.job_name))
    )


@dataclass
class FakeUsage:
    """``loop_reads.UsageReads``."""

    rows: list[GpuUsage] = field(default_factory=list)
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def usage(
        self, by: UsageBy, *, since_s: float, limit: int, user_name: str | None = None, within: Owned | None = None,
        job_name: str | None = None,
    ) -> Sequence[GpuUsage]:  # fmt: skip
        self.asked.append((by, since_s, limit, user_name or within, job_name))
        theirs = [one for one in self.rows if within in (None, one.user_name)]
        return [one for one in theirs if user_name in (None, one.user_name)][:limit]

    def gpu_sizes(self, *, since_s: float) -> Sequence[int]:
        return sorted({one.gpu_bytes for one in self.rows})


@dataclass
class FakeGrades:
    """``loop_reads.Grades`` over the incidents and decisions of a ``FakeStore``."""

    incidents: FakeIncidents
    audit: FakeAudit
    given: list[tuple[int, GradeAnswer]] = field(default_factory=list)

    def add(self, number: int, answer: GradeAnswer) -> bool:
        self.given.append((number, answer))
        return self.incidents.incident(number) is not None

    def answers(self, number: int) -> Sequence[GradeAnswer]:
        return tuple(answer for about, answer in self.given if about == number)

    def last_of(self, number: int, name: str) -> GradeAnswer | None:
        return next((one for one in reversed(self.answers(number)) if one.by == name), None)

    def notified(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[GradedIncident]:
        found = self.incidents.each(open_only=False, since_s=None, limit=None, user_name=user_name)
        graded = [self._graded(one) for one in found if one.key.cause.is_growth and one.opened_unix_s >= since_s]
        return [one for one in graded if one is not None][:limit]

    def count_notified(self, *, since_s: float, user_name: Owned | None = None) -> int:
        return len(self.notified(since_s=since_s, limit=1 << 30, user_name=user_name))

    def _graded(self, incident: Incident) -> GradedIncident | None:
        of_incident = self.audit.records_of(incident.number)
        messages = [one for one in of_incident if one.decision.action is ActionKind.NOTIFY]
        told = any(one.outcome is Outcome.DONE for one in messages)
        if not told and all(one.decision.disposition is not Disposition.WOULD for one in messages):
            return None
        severity = incident.worst_severity or incident.severity
        return GradedIncident(
            incident.number, incident.user_name, incident.key.cause, severity, incident.opened_unix_s, told,
            tuple(self.answers(incident.number)),
        )  # fmt: skip


@dataclass
class FakeActs:
    """``loop_reads.Acts``, all of whose acts everybody may see."""

    kept: dict[str, PersonAct] = field(default_factory=dict)
    """By id of the request."""

    def find(self, request_id: str) -> PersonAct | None:
        return self.kept.get(request_id)

    def begin(self, act: PersonAct) -> PersonAct | None:
        before = self.kept.get(act.request_id)
        self.kept.setdefault(act.request_id, act)
        return before

    def finish(self, request_id: str, outcome: ActOutcome, detail: str | None) -> PersonAct:
        self.kept[request_id] = self.kept[request_id]._replace(outcome=outcome, detail=detail)
        return self.kept[request_id]

    def of_incident(self, number: int) -> Sequence[PersonAct]:
        return [one for one in self.kept.values() if one.number == number]

    def latest(self, *, since_s: float, limit: int, user_name: Owned | None = None) -> Sequence[PersonAct]:
        return _newest([one for one in self.kept.values() if one.at_unix_s >= since_s], limit)


@dataclass
class FakeStore:
    """``problem`` is what every look at it raises."""

    incidents: FakeIncidents = field(default_factory=FakeIncidents)
    audit: FakeAudit = field(default_factory=FakeAudit)
    evidence: FakeEvidence = field(default_factory=FakeEvidence)
    jobs: FakeJobs = field(default_factory=FakeJobs)
    profiles: FakeProfiles = field(default_factory=FakeProfiles)
    usage: FakeUsage = field(default_factory=FakeUsage)
    acts: FakeActs = field(default_factory=FakeActs)
    problem: str | None = None

    def __post_init__(self) -> None:
        self.grades = FakeGrades(self.incidents, self.audit)

    def __call__(self) -> FakeStore:
        if self.problem is not None:
            raise AuditError(self.problem)
        return self


class NoAsks:
    """``profile_api.ProfileAsks`` where nothing runs."""

    def ask(self, job: JobKey, ranks: Collection[int]) -> Sequence[AskedProfile]:
        raise LookupError(f"job {job.job_id} has no running rank")

    def asked(self, job: JobKey) -> Sequence[AskedProfile]:
        return ()

    def problems(self) -> Sequence[ProfileProblem]:
        return ()


@contextmanager
def serving(
    store: Callable[[], LoopStore], status: LoopStatus, door: LoginDoor = OPEN_DOOR, *, jobs: Sequence[JobView] = (),
    asks: ProfileAsks | None = None,
) -> Iterator[str]:  # fmt: skip
    """The pages on loopback; yields the API's address."""
    grades = GradePages(store, lambda: NOW_S, lambda _: "")
    acts = ActPages(store, lambda: NOW_S, lambda *_: "a rank records", lambda _: "")
    profiles = ProfilePages(store, asks or NoAsks(), lambda viewer, _: viewer.sees_all)
    watched = {"/api/v1/jobs": json_route(lambda _: {"jobs": list(jobs), "seen_as": None})}
    routes = {
        **loop_routes(store, lambda: status), **RecordPages(store).routes(), **evidence_routes(store),
        **profiles.routes(), **grades.routes(), **acts.routes(), **watched,
    }  # fmt: skip
    forms = {**grades.forms(), **acts.forms(), **profiles.forms()}
    api = HttpApi(routes, forms=forms, host="127.0.0.1", port=0, door=door)
    api.start()
    try:
        yield api.url
    finally:
        api.stop()


def real_store(told: FakeStore, folder: Path) -> Store:
    """A database in ``folder`` that was told the same incidents and decisions; the caller closes it."""
    real = open_store(sqlite_url(folder))
    real.incidents.save(told.incidents.story)
    for made in told.audit.made:
        name = made.decision.decision_id
        real.audit.write_ahead([made.decision])
        for _ in range(made.starts):
            real.audit.begin(name, at_s=made.started_s or 0.0)
        if made.outcome is not None:
            real.audit.finish(name, made.outcome, made.detail or "", at_s=made.finished_s or 0.0)
    return real


def told_store() -> FakeStore:
    """Two incidents: job 4711's rank 1 leaks and is about to be started again; job 4712 recovered by itself."""
    opened = incident(severity=Severity.WARNING, worst_severity=Severity.WARNING, updated_unix_s=NOW_S - 600.0)
    now = incident(updated_unix_s=NOW_S - 20.0)
    other = incident(
        IncidentCause.FRAGMENTATION, job=JobKey("4712", 1, 1002), number=2, user_name="grace", job_name=None,
        world_size=64, findings=tuple(finding(rank) for rank in range(64)), common=True,
        opened_unix_s=NOW_S - 7200.0, updated_unix_s=NOW_S - 7200.0,
        bytes_per_step=Band(1.0 * MIB, 2.0 * MIB, 3.0 * MIB), seconds_to_oom=None,
    )  # fmt: skip
    over = replace(
        other, state=IncidentState.CLOSED, closure=Closure.RECOVERED, closed_unix_s=NOW_S - 3600.0,
        updated_unix_s=NOW_S - 3600.0,
    )  # fmt: skip
    story = [
        IncidentChange(ChangeKind.OPENED, NOW_S - 7200.0, other),
        IncidentChange(ChangeKind.RECOVERING, NOW_S - 4000.0, replace(other, state=IncidentState.RECOVERING)),
        IncidentChange(ChangeKind.CLOSED, NOW_S - 3600.0, over),
        IncidentChange(ChangeKind.OPENED, NOW_S - 600.0, opened),
        IncidentChange(ChangeKind.UPDATED, NOW_S - 300.0, replace(opened, updated_unix_s=NOW_S - 300.0)),
        IncidentChange(ChangeKind.ESCALATED, NOW_S - 240.0, replace(now, updated_unix_s=NOW_S - 240.0)),
        IncidentChange(ChangeKind.UPDATED, NOW_S - 20.0, now),
    ]
    return FakeStore(FakeIncidents(story), FakeAudit(_decisions(opened, now, other)))


def _decisions(opened: Incident, now: Incident, other: Incident) -> list[DecisionRecord]:
    notify = decision(incident=opened, decided_s=NOW_S - 599.0, rule="leak-requeue")
    checkpoint = decision(
        ActionKind.CHECKPOINT, decision_id="1:leak-requeue:2:1", incident=now, decided_s=NOW_S - 120.0,
        rule="leak-requeue", rung=2,
    )  # fmt: skip
    withheld = decision(
        ActionKind.CHECKPOINT, decision_id="1:leak-requeue:2:1:withheld:min_age", incident=now, rule="leak-requeue",
        rung=2, decided_s=NOW_S - 200.0, disposition=Disposition.WITHHELD, brake="paused",
        reason="actions are paused: by root since noon",
    )  # fmt: skip
    requeue = decision(
        ActionKind.REQUEUE, decision_id="1:leak-requeue:3:1", incident=now, decided_s=NOW_S - 30.0,
        rule="leak-requeue", rung=3,
    )  # fmt: skip
    would = decision(
        ActionKind.REQUEUE, decision_id="2:fragmentation:0:1:would", incident=other, decided_s=NOW_S - 7000.0,
        disposition=Disposition.WOULD, mode="observe", rule="fragmentation", facts=facts(other.key.job),
        reason="64 ranks of job 4712 lose memory to fragmentation",
    )  # fmt: skip
    finished = DecisionStatus.FINISHED
    return [
        DecisionRecord(would, finished),
        DecisionRecord(
            notify, finished, Outcome.DONE, "written to the job's terminal", NOW_S - 598.0, NOW_S - 597.0, 1
        ),
        DecisionRecord(withheld, finished),
        DecisionRecord(
            checkpoint, finished, Outcome.DONE, "2 of 2 ranks saved at step 412", NOW_S - 119.0, NOW_S - 60.0, 2
        ),
        DecisionRecord(requeue, DecisionStatus.STARTED, started_s=NOW_S - 29.0, starts=1),
    ]
