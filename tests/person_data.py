"""A store with all kinds of rows about two users, for tests of what is kept, exported and forgotten."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from evidence_values import evidence, snapshot_ref
from rank_profiles import rank_profile
from sample_views import NOW_S, job_record
from scheduler_values import decision, facts, finding, incident, scheduler_facts, target
from tidegauge.cluster.store import Store
from tidegauge.core.evidence import StackGrowth
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.ids import JobKey
from tidegauge.core.incidents import ChangeKind, Closure, Incident, IncidentChange, IncidentState
from tidegauge.core.incidents.actions import ActionKind, Outcome
from tidegauge.core.incidents.acts import ActKind, PersonAct
from tidegauge.core.incidents.grades import Grade, GradeAnswer
from tidegauge.core.job_records.memory import JobMemory, RankMemory
from tidegauge.core.job_records.record import JobRecord, RankPeak
from tidegauge.core.memory_history import MemoryPoint

POINTS = (MemoryPoint(NOW_S, 1, 10, 20, None), MemoryPoint(NOW_S + 1.5, 3, 1 << 40, 20, 5))


@dataclass(frozen=True)
class Somebody:
    """A user with one job; all of its words are no word of anybody else's."""

    name: str
    uid: int
    job_id: str
    number: int

    @property
    def job(self) -> JobKey:
        return JobKey(self.job_id, 0, self.uid)

    @property
    def job_name(self) -> str:
        return f"pretrain-of-{self.name}"

    @property
    def script(self) -> str:
        return f"/home/{self.name}/train_{self.name}.py"

    @property
    def words(self) -> tuple[str, ...]:
        """What must be nowhere once the user is forgotten."""
        return self.name, self.job_id, self.job_name, self.script, f"host-of-{self.name}"

    @property
    def snapshot_key(self) -> str:
        return f"lab/{self.uid}/{self.job_id}/0/rank-1/step-204-1800000000250.snap.zst"


ADA = Somebody("adalovelace", 70_001, "48151623", 1)
BOB = Somebody("bobnoyce", 70_002, "42108815", 2)


def record_of(who: Somebody, **changes: Any) -> JobRecord:
    record = job_record(
        job=who.job, user_name=who.name, job_name=who.job_name, script=who.script,
        arguments=f"--data {who.script}.csv", account=f"account-of-{who.name}", incidents=(who.number,),
        fullest=RankPeak(1, f"host-of-{who.name}", 20, 22, 80),
    )  # fmt: skip
    return record._replace(**changes)


def incident_of(who: Somebody, **changes: Any) -> Incident:
    whole = incident(
        job=who.job, number=who.number, user_name=who.name, job_name=who.job_name, state=IncidentState.CLOSED,
        closed_unix_s=NOW_S + 60.0, closure=Closure.JOB_ENDED, findings=(finding(1, hostname=f"host-of-{who.name}"),),
        explanation=f"job {who.job_id} of {who.name} asked for 2 GiB", snapshots=(who.snapshot_key,),
        reports=(f"/var/{who.name}.html",), array_name=f"{who.job_id}_3", group_name=f"trainer {who.name}",
    )  # fmt: skip
    return replace(whole, **changes)


def fill(store: Store, who: Somebody, other: Somebody) -> None:
    """Write one row of every kind about ``who``; ``other`` says something about the incident, and ``who`` about it."""
    opened = incident_of(who, state=IncidentState.OPEN, closed_unix_s=None, closure=None)
    store.incidents.save([
        IncidentChange(ChangeKind.OPENED, NOW_S, opened),
        IncidentChange(ChangeKind.CLOSED, NOW_S + 60.0, incident_of(who)),
    ])  # fmt: skip
    memory = (RankMemory(1, POINTS),)
    store.incidents.save_memory({who.number: memory})
    made = decision(
        ActionKind.REQUEUE, decision_id=f"{who.number}:leak:0:1", incident=opened,
        target=target(who.job, handle={"unit": f"{who.job_id}.{who.name}"}, group_name=f"trainer {who.name}"),
        facts=facts(
            who.job, target=target(who.job), user_name=who.name, job_name=who.job_name,
            scheduler_facts=scheduler_facts(account=f"account-of-{who.name}", array_name=f"{who.job_id}_3"),
        ),
        reason=f"job {who.job_id} of {who.name} leaks", parameters={"text": f"{who.script} leaks"},
    )  # fmt: skip
    store.audit.write_ahead([made])
    store.audit.finish(made.decision_id, Outcome.DONE, f"{who.name} was told about {who.job_id}", at_s=NOW_S + 30.0)
    line = CodeLine(who.script, 41, "step")
    grown = (StackGrowth(348, 29, (line,), line, 12),)
    piece = evidence(
        job=who.job, hostname=f"host-of-{who.name}", growth=grown, live=grown,
        snapshots=(snapshot_ref()._replace(key=who.snapshot_key),),
    )  # fmt: skip
    store.evidence.keep([piece], at_s=NOW_S)
    profile = rank_profile(job=who.job, hostname=f"host-of-{who.name}")
    store.profiles.keep([profile], at_s=NOW_S)
    record = record_of(who)
    store.jobs.save([record])
    store.jobs.save_memory({record: JobMemory((record.fullest,), memory)})
    store.grades.add(who.number, GradeAnswer(Grade.LEAK, who.name, False, NOW_S + 70.0, f"mine, says {who.name}"))
    store.grades.add(who.number, GradeAnswer(Grade.LEAK, other.name, True, NOW_S + 71.0, None))
    for by, account in ((who.name, f"T0ROSE/U0{who.number}"), (other.name, None)):
        asked = PersonAct(f"{by} on {who.number}", who.number, ActKind.ACKNOWLEDGE, by, False, NOW_S + 72.0)
        store.acts.begin(asked._replace(request_id=f"{who.number}-{account}", sender=account, detail=f"{by} said so"))


def fill_with_two(store: Store) -> None:
    fill(store, ADA, BOB)
    fill(store, BOB, ADA)
