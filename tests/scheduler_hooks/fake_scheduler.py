"""A scheduler and an audit as small models: what adapters and stores promise, and how they fail, without processes.

The world is plain data, so that it can be kept in a file and outlive the process that works on it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sample_views import identity, job_view, rank_summary
from tidegauge.core.ids import JobId, JobKey
from tidegauge.core.incidents.actions import (
    BREAKERS,
    ActionKind,
    AuditError,
    Decision,
    DecisionRecord,
    DecisionStatus,
    Disposition,
    JobTarget,
    Outcome,
    RankTarget,
    SchedulerFacts,
)
from tidegauge.core.verdicts import OK
from tidegauge.core.views import JobView
from tidegauge_scheduler_hooks.ports import (
    ChangedError,
    CheckpointProgress,
    CheckpointStage,
    PermanentError,
    Presence,
    Reply,
    RequeueChanges,
    TemporaryError,
)

UID = 1001


@dataclass
class FakeJob:
    """One job. Its first incarnation is ``0@1800000000.0``, as in ``scheduler_values``."""

    job_id: str
    starts: int = 1
    presence: str = "running"
    """Of its latest incarnation; ``replaced`` while it waits to be started."""
    environ: dict[str, str] = field(default_factory=dict)
    can_save: bool = False
    saves: int = 0
    looks: int = 0
    """How often it was looked whether it has saved."""
    messages: list[str] = field(default_factory=list)

    @property
    def incarnation(self) -> str:
        return f"{self.starts - 1}@1800000000.0"


@dataclass
class FakeWorld:
    """All that a scheduler knows, and what was really done to its jobs."""

    jobs: dict[str, FakeJob] = field(default_factory=dict)
    accepted: dict[str, str] = field(default_factory=dict)
    """What was asked for so far, by decision."""
    effects: list[tuple[str, str]] = field(default_factory=list)
    """Decision and action, in the order in which they happened."""
    pending: list[tuple[str, str, str]] = field(default_factory=list)
    """Decision, action and job of what was accepted but has not happened yet."""
    looks_to_proof: int = 0
    """How often a checkpoint is looked at before it is proven."""


class FakeScheduler:
    """``before`` and ``after`` hold what goes wrong in the next calls of a method: calls that raise, or wait.

    With ``delayed`` a run ends at ``settle``, not when that is accepted; ``lies`` are accepted and never happen.
    """

    def __init__(self, world: FakeWorld, *, changed: Callable[[], None] = lambda: None) -> None:
        self.world = world
        self.before: dict[str, list[Callable[[], None]]] = {}
        self.after: dict[str, list[Callable[[], None]]] = {}
        self.calls: list[str] = []
        self.deadlines: list[float] = []
        self.lies: frozenset[ActionKind] = frozenset()
        self.delayed = False
        self._changed = changed

    def describe(self, jobs: Sequence[JobView]) -> Mapping[JobKey, SchedulerFacts]:
        found = {}
        for view in jobs:
            job = self.world.jobs.get(view.job_id)
            if job is not None and job.starts - 1 == view.attempt:
                running = job.presence == "running"
                found[view.key] = SchedulerFacts(job.incarnation, running, True, restarts=job.starts - 1)
        return found

    def presence(self, target: JobTarget) -> Presence:
        self._enter("presence")
        job = self.world.jobs.get(target.job.job_id)
        if job is None:
            return Presence.GONE
        if job.incarnation != target.incarnation:
            return Presence.REPLACED if job.presence in ("running", "replaced") else Presence(job.presence)
        return Presence(job.presence)

    def notify(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        self._do("notify", ActionKind.NOTIFY, target, decision_id, text)

    def annotate(self, target: JobTarget, text: str, *, decision_id: str) -> None:
        self._do("annotate", ActionKind.ANNOTATE, target, decision_id, text)

    def cap(self, target: JobTarget, fraction: float, *, decision_id: str) -> str:
        self._do("cap", ActionKind.CAP, target, decision_id, str(fraction))
        return f"fraction {fraction} on 1 rank"

    def checkpoint(self, target: JobTarget, *, decision_id: str, deadline_unix_s: float) -> CheckpointProgress:
        self._enter("checkpoint")
        job = self._this_run(target)
        self.deadlines.append(deadline_unix_s)
        if not job.can_save:
            return CheckpointProgress(CheckpointStage.REFUSED, "no rank has a callback")
        if decision_id not in self.world.accepted:
            self.world.accepted[decision_id] = "checkpoint"
            self._happen(decision_id, ActionKind.CHECKPOINT, job)
        job.looks += 1
        self._changed()
        self._leave("checkpoint")
        if job.looks > self.world.looks_to_proof:
            return CheckpointProgress(CheckpointStage.PROVEN, "1 of 1 ranks saved at step 412")
        return CheckpointProgress(CheckpointStage.ASKED, "0 of 1 ranks saved")

    def requeue(self, target: JobTarget, changes: RequeueChanges, reason: str, *, decision_id: str) -> None:
        conf = ",".join(f"{name}:{value}" for name, value in changes.alloc_conf.items())
        environ = dict(changes.environ) | ({"PYTORCH_CUDA_ALLOC_CONF": conf} if conf else {})
        self._do("requeue", ActionKind.REQUEUE, target, decision_id, environ=environ)

    def hold(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        self._do("hold", ActionKind.HOLD, target, decision_id)

    def cancel(self, target: JobTarget, reason: str, *, decision_id: str) -> None:
        self._do("cancel", ActionKind.CANCEL, target, decision_id)

    def evidence(self, job: JobKey, evidence_id: str) -> None:
        """No scheduler does this: what the ranks of the fake world do when they are asked for evidence."""
        self._do("snapshot", ActionKind.SNAPSHOT, JobTarget(job, "fake", ""), evidence_id)

    def settle(self) -> None:
        """Have everything happen that was accepted."""
        pending, self.world.pending = self.world.pending, []
        for decision_id, action, job_id in pending:
            self._happen(decision_id, ActionKind(action), self.world.jobs[job_id])

    def _do(
        self,
        method: str,
        action: ActionKind,
        target: JobTarget,
        decision_id: str,
        text: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._enter(method)
        if decision_id not in self.world.accepted:
            # Owners are told also of what has ended.
            job = self._this_run(target) if action.is_acting else self.world.jobs[target.job.job_id]
            self.world.accepted[decision_id] = action.value
            job.environ.update(environ or {})
            if action is ActionKind.CAP:
                job.environ["TIDEGAUGE_MEMORY_FRACTION"] = text
            elif text:
                job.messages.append(text)
            if action not in self.lies:
                self.world.pending.append((decision_id, action.value, job.job_id))
                if not (self.delayed and action.is_stop):
                    self.settle()
            self._changed()
        self._leave(method)

    def _this_run(self, target: JobTarget) -> FakeJob:
        job = self.world.jobs.get(target.job.job_id)
        if job is None:
            raise PermanentError(f"there is no job {target.job.job_id}")
        if job.incarnation != target.incarnation or job.presence != "running":
            raise ChangedError(f"job {job.job_id} is not in run {target.incarnation} any more")
        return job

    def _happen(self, decision_id: str, action: ActionKind, job: FakeJob) -> None:
        self.world.effects.append((decision_id, action.value))
        if action is ActionKind.CHECKPOINT:
            job.saves += 1
        elif action is ActionKind.REQUEUE:
            job.starts += 1
        elif action is ActionKind.HOLD:
            job.presence = "held"
        elif action is ActionKind.CANCEL:
            job.presence = "gone"

    def _enter(self, method: str) -> None:
        self.calls.append(method)
        _next(self.before, method)

    def _leave(self, method: str) -> None:
        _next(self.after, method)


class FakeEvidenceRanks:
    """``ProcessCommands`` to the ranks of a ``FakeScheduler``'s world, for evidence alone. What the fake raises becomes
    the answer that a rank gives instead."""

    def __init__(self, scheduler: FakeScheduler) -> None:
        self._scheduler = scheduler

    def ask_ranks(
        self, job: JobKey, ranks: Collection[RankTarget], request: Mapping[str, Any], *, timeout_s: float
    ) -> Mapping[int, Reply]:
        (rank,) = ranks
        assert request["command"] == "evidence"
        try:
            self._scheduler.evidence(job, request["id"])
        except TemporaryError as error:
            return {rank.rank: Reply(error=str(error), kind="busy")}
        except PermanentError as error:
            return {rank.rank: Reply(error=str(error), kind="unable")}
        return {rank.rank: Reply(value={"ok": True, "id": request["id"], "state": "recording"})}

    def ask_launch(
        self, job: JobKey, node_id: str, handle: Mapping[str, Any], request: Mapping[str, Any], *, timeout_s: float
    ) -> Reply:
        raise AssertionError("nobody asks a keeper for evidence")


def _next(planned: dict[str, list[Callable[[], None]]], method: str) -> None:
    if planned.get(method):
        planned[method].pop(0)()


def raising(error: BaseException) -> Callable[[], None]:
    """A call that raises: for ``FakeScheduler.before`` and ``after``."""

    def call() -> None:
        raise error

    return call


def view_of(job: FakeJob) -> JobView:
    """The job as the coordinator sees it: one rank, in its latest attempt."""
    who = identity(0, job_id=JobId(job.job_id), attempt=job.starts - 1, world_size=1)
    rank = rank_summary(0, identity=who, uid=UID, verdict=OK, alive=job.presence == "running")
    return job_view(
        job_id=job.job_id, attempt=job.starts - 1, scheduler="fake", world_size=1, ranks=(rank,),
        rank_nodes=("engine-0",), rank_hostnames=("node0",), running=job.presence == "running",
    )  # fmt: skip


class MemoryAudit:
    """``Audit`` in memory. ``failing`` names methods that raise ``error`` before they have done anything, and
    ``failing_after`` such that raise ``AuditError`` although it is written: a commit whose answer was lost."""

    def __init__(self) -> None:
        self.kept: dict[str, DecisionRecord] = {}
        self.failing: set[str] = set()
        self.error: Exception = AuditError("database is locked")
        self.failing_after: set[str] = set()
        self.open_incidents: Callable[[], Collection[int]] = lambda: ()
        """Numbers, for ``memory``."""

    def write_ahead(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        self._may("write_ahead")
        new = [decision for decision in decisions if decision.decision_id not in self.kept]
        for decision in new:
            to_do = decision.disposition is Disposition.DO
            status = DecisionStatus.DECIDED if to_do else DecisionStatus.FINISHED
            self.kept[decision.decision_id] = DecisionRecord(decision, status)
        self._did("write_ahead")
        return new

    def begin(self, decision_id: str, *, at_s: float) -> None:
        self._may("begin")
        record = self.kept[decision_id]
        assert record.status is not DecisionStatus.FINISHED, f"{decision_id} is over"
        self.kept[decision_id] = replace(
            record, status=DecisionStatus.STARTED, started_s=at_s, starts=record.starts + 1
        )  # fmt: skip
        self._did("begin")

    def finish(self, decision_id: str, outcome: Outcome, detail: str, *, at_s: float) -> None:
        self._may("finish")
        record = self.kept[decision_id]
        if record.status is not DecisionStatus.FINISHED:
            self.kept[decision_id] = replace(
                record, status=DecisionStatus.FINISHED, outcome=outcome, detail=detail, finished_s=at_s
            )
        self._did("finish")

    def unfinished(self) -> Sequence[DecisionRecord]:
        self._may("unfinished")
        left = [record for record in self.kept.values() if record.status is not DecisionStatus.FINISHED]
        return sorted(left, key=lambda record: record.decision.decided_s)

    def each(self, *, since_s: float) -> Iterator[DecisionRecord]:
        self._may("each")
        return iter([record for record in self.kept.values() if record.decision.decided_s >= since_s])

    def memory(self, *, since_s: float) -> Iterator[DecisionRecord]:
        self._may("memory")
        still_open = self.open_incidents()
        for record in list(self.kept.values()):
            one = record.decision
            withheld = one.brake in BREAKERS and ":would:withheld:" not in one.decision_id
            unfinished = record.status is not DecisionStatus.FINISHED
            if one.decided_s >= since_s or one.incident.number in still_open or unfinished or withheld:
                yield record

    def _may(self, method: str) -> None:
        if method in self.failing:
            raise self.error

    def _did(self, method: str) -> None:
        if method in self.failing_after:
            raise AuditError("server closed the connection unexpectedly")
