"""Small incidents, facts, targets and decisions for tests of policy, actions and adapters, with what a test wants
changed: every builder takes the fields of its value as keywords."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sample_views import GIB, LEAK, MIB, NOW_S, uuid_of
from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import (
    Closure,
    Incident,
    IncidentCause,
    IncidentKey,
    IncidentState,
    OomEnd,
    OomForecast,
    RankFinding,
)
from tidegauge.core.incidents.actions import (
    ActionKind,
    CheckpointWay,
    Decision,
    DecisionRecord,
    DecisionStatus,
    Disposition,
    JobFacts,
    JobTarget,
    Outcome,
    RankTarget,
    SchedulerFacts,
)
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import Band, Severity

JOB = JobKey("4711", 0, 1001)


def finding(rank: int = 0, **changes: Any) -> RankFinding:
    """One rank that leaks 12 MiB a step and runs out in about a quarter of an hour."""
    whole = RankFinding(
        rank=rank,
        hostname=f"node{rank // 8}",
        node_id=f"engine-{rank // 8}",
        process=ProcessId(1000 + rank, 5_000 + rank),
        gpu=rank % 8,
        uuid=uuid_of(rank % 8),
        step=200,
        verdict=LEAK,
        allocated_bytes=60 * GIB,
        reserved_bytes=62 * GIB,
        nontorch_bytes=700 * MIB,
        limit_bytes=80 * GIB,
    )
    return replace(whole, **changes)


def oom_record(**changes: Any) -> OomRecord:
    """A card that was full: 512 MiB were wanted, 200 MiB were free."""
    record = OomRecord(NOW_S, 200, 512 * MIB, 200 * MIB, 80 * GIB, 78 * GIB, 79 * GIB)
    return record._replace(**changes)


def incident(cause: IncidentCause = IncidentCause.LEAK, *, job: JobKey = JOB, **changes: Any) -> Incident:
    """An open, critical incident of job 4711, ten minutes old, with 14 to 22 minutes to its out-of-memory."""
    whole = Incident(
        number=1,
        key=IncidentKey(job, cause),
        state=IncidentState.OPEN,
        severity=Severity.CRITICAL,
        user_name="ada",
        job_name="llm-pretrain",
        scheduler="local",
        world_size=2,
        findings=(finding(1),),
        common=False,
        opened_unix_s=NOW_S - 600.0,
        updated_unix_s=NOW_S,
        onset_step=40,
        bytes_per_step=Band(11.5 * MIB, 12.0 * MIB, 12.5 * MIB),
        seconds_to_oom=Band(840.0, 1_080.0, 1_320.0),
        grown_bytes=960 * MIB,
        worst_severity=Severity.CRITICAL,
    )
    return replace(whole, **changes)


def died_of_oom(**changes: Any) -> Incident:
    """The same, closed by the out-of-memory error of rank 1, 28 s after its first forecast; its incident is 2."""
    oom = oom_record(at_unix_s=NOW_S, step=3816, wanted_bytes=20 * MIB, free_bytes=10 * MIB)
    whole: dict[str, Any] = {
        "state": IncidentState.CLOSED,
        "closure": Closure.RAN_OUT_OF_MEMORY,
        "opened_unix_s": NOW_S - 28.0,
        "updated_unix_s": NOW_S - 8.0,
        "closed_unix_s": NOW_S + 2.0,
        "seconds_to_oom": Band(2.0, 7.0, 9.0),
        "foreseen": OomForecast(NOW_S - 28.0, Band(17.0, 22.0, 28.0)),
        "ran_out": OomEnd(1, oom, number=2, ended_job=True),
        "explanation": "rank 1, step 3816: live tensors grew. Trying again would get as far again",
    }
    return incident(**(whole | changes))


def target(job: JobKey = JOB, **changes: Any) -> JobTarget:
    """A two-rank job under the local adapter, in its first attempt."""
    whole = JobTarget(
        job=job,
        scheduler="local",
        incarnation="0@1800000000.0",
        ranks=tuple(RankTarget(rank, "engine-0", ProcessId(1000 + rank, 5_000 + rank), 200) for rank in range(2)),
        handle={"pid": 900, "start_ticks": 4_000},
    )
    return replace(whole, **changes)


def scheduler_facts(**changes: Any) -> SchedulerFacts:
    """What the local adapter says of a job whose owner allows requeueing."""
    whole = SchedulerFacts(
        incarnation="0@1800000000.0",
        running=True,
        requeueable=True,
        account="physics",
        partition="gpu",
        namespace="team-a",
        qos="normal",
        started_unix_s=NOW_S - 3_600.0,
        handle={"pid": 900, "start_ticks": 4_000},
    )
    return replace(whole, **changes)


def facts(job: JobKey = JOB, **changes: Any) -> JobFacts:
    """A running job that can be asked to save its state and be started again, on GPUs of its own, one of 20 jobs."""
    whole = JobFacts(
        target=target(job),
        scheduler_facts=scheduler_facts(),
        running=True,
        stale=False,
        world_size=2,
        user_name="ada",
        job_name="llm-pretrain",
        checkpoint=CheckpointWay.CALLBACK,
        shared_gpu=False,
        torch_version="2.11.0",
        jobs_running=20,
    )
    return replace(whole, **changes)


def decision(action: ActionKind = ActionKind.NOTIFY, **changes: Any) -> Decision:
    """The first rung of a rule, to be carried out."""
    whole = Decision(
        decision_id="1:leak:0:1",
        decided_s=NOW_S,
        action=action,
        disposition=Disposition.DO,
        target=target(),
        incident=incident(),
        facts=facts(),
        rule="leak",
        rung=0,
        attempt=1,
        reason="rank 1 of job 4711 leaks 12 MiB a step",
        parameters={"text": "rank 1 leaks"} if action is ActionKind.NOTIFY else {},
        mode="act",
    )
    return replace(whole, **changes)


def record(made: Decision | None = None, outcome: Outcome | None = None, **changes: Any) -> DecisionRecord:
    """A decision in the audit: finished if an outcome is given or nothing is to be done, else only written down."""
    chosen = decision() if made is None else made
    over = outcome is not None or chosen.disposition is not Disposition.DO
    whole = DecisionRecord(
        decision=chosen,
        status=DecisionStatus.FINISHED if over else DecisionStatus.DECIDED,
        outcome=outcome,
        finished_s=chosen.decided_s if outcome is not None else None,
    )
    return replace(whole, **changes)
