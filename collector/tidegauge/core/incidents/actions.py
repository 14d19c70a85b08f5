"""Actions on jobs as values, shared by policy, scheduler adapters and audit.

Times are seconds of the *policy clock* (unix seconds that never run backwards, see ``steady_clock.PolicyClock``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Optional

from tidegauge.core.ids import JobKey, ProcessId
from tidegauge.core.incidents import Incident
from tidegauge.core.verdicts import Severity

BREAKER, USER_BREAKER = BREAKERS = ("breaker", "user_breaker")
"""The circuit breakers, as ``Decision.brake`` and ids call them: of the whole cluster, and of one user's jobs."""


class ActionKind(str, Enum):
    """A kind of action, in order of harm: the ``action`` label of ``tidegauge_actions_total``."""

    NOTIFY = "notify"
    """Tell the owner."""
    ANNOTATE = "annotate"
    """Leave a remark on the job where the scheduler shows it."""
    SNAPSHOT = "snapshot"
    """Ask the rank to look at first for evidence: the line that allocates, the object that holds."""
    CAP = "cap"
    """Set the memory fraction of its ranks: what is above it stays, it can only not grow further."""
    CHECKPOINT = "checkpoint"
    """Ask the job to save its state, and wait for proof that it did."""
    REQUEUE = "requeue"
    """End this attempt and have the job start again, possibly with other allocator settings."""
    HOLD = "hold"
    """End this attempt; the job starts again only when a person says so."""
    CANCEL = "cancel"
    """End the job for good."""

    @property
    def is_acting(self) -> bool:
        """It changes something about the job: all but telling people and looking closer. ``observe`` and ``warn`` never
        do it."""
        return self not in (ActionKind.NOTIFY, ActionKind.ANNOTATE, ActionKind.SNAPSHOT)

    @property
    def is_words(self) -> bool:
        """It tells people something, and no more."""
        return self in (ActionKind.NOTIFY, ActionKind.ANNOTATE)

    @property
    def is_stop(self) -> bool:
        """It ends the processes of the job."""
        return self in (ActionKind.REQUEUE, ActionKind.HOLD, ActionKind.CANCEL)


class Disposition(str, Enum):
    """A decision's disposition when it is made."""

    DO = "do"
    """It is to be carried out."""
    WOULD = "would"
    """The policy's mode does not allow it: written down as what would have been done."""
    WITHHELD = "withheld"
    """A brake holds it back; ``Decision.brake`` says which."""


class Outcome(str, Enum):
    """The outcome of a decision to act: the ``outcome`` label of ``tidegauge_actions_total``.

    Decisions that were not carried out are counted there as ``would`` and ``withheld``.
    """

    DONE = "done"
    """Done, and seen to be done."""
    FAILED = "failed"
    """The scheduler or the job refused, or it failed again and again."""
    UNVERIFIED = "unverified"
    """The scheduler said yes, but the job did not change within the time allowed."""
    NO_PROOF = "no_proof"
    """The job was asked to save its state, and there was no proof that it did within the grace."""
    SUPERSEDED = "superseded"
    """When its turn came the job had ended, restarted or been changed by somebody else: nothing was done."""
    STOPPED = "stopped"
    """Actions were paused, or a breaker opened, between the decision and its turn: nothing was done."""


class CheckpointWay(str, Enum):
    """The way to ask a job for a checkpoint."""

    CALLBACK = "callback"
    """``tidegauge.on_checkpoint_request(fn)``: the proof is that ``fn`` returned on every rank that has one."""
    SIGNAL = "signal"
    """A signal that the job handles: the proof is a fresh file under the path that the owner declared."""
    NONE = "none"
    """``TIDEGAUGE_CHECKPOINT=none``: there is nothing to save, as all of its ranks say."""


class RankTarget(NamedTuple):
    """A rank that commands can be sent to."""

    rank: int
    node_id: str
    process: ProcessId
    step: int
    """Training steps finished when this was noted."""


class GroupTarget(NamedTuple):
    """Another group of ranks that ends if the job is ended."""

    job: JobKey
    name: str
    """What people call it."""
    ranks: tuple[RankTarget, ...]
    """Those that live."""

    @property
    def called(self) -> str:
        """Its name; of the only group of an attempt, or of a user, what tells that from the others."""
        return self.name or f"attempt {self.job.attempt} of uid {self.job.uid}"


@dataclass(frozen=True)
class JobTarget:
    """The run of a job that a decision is about: enough to carry the decision out after a restart, and to notice that
    the run has changed."""

    job: JobKey
    scheduler: str
    """Which adapter: ``local``, ``ray``, ``slurm``, ``kubernetes``."""
    incarnation: str
    """The adapter's own word for this run (restart count and start time, say). Acting on a job that has another by
    now is refused: that is what makes repeating an action harmless."""
    ranks: tuple[RankTarget, ...] = ()
    handle: Mapping[str, Any] = field(default_factory=dict)
    """Whatever else the adapter needs to find it again; JSON."""
    group_name: str = ""
    """What people call the group of ranks that ``ranks`` are; empty where the job has one."""
    others: tuple[GroupTarget, ...] = ()
    """The job's other groups of ranks that live."""

    @property
    def groups(self) -> tuple[GroupTarget, ...]:
        """All groups that end when the job is ended and of which a rank lives, its own first."""
        own = (GroupTarget(self.job, self.group_name, self.ranks),) if self.ranks else ()
        return (*own, *self.others)

    @property
    def processes(self) -> frozenset[ProcessId]:
        """The processes of all ranks of all groups."""
        return frozenset(rank.process for group in self.groups for rank in group.ranks)


@dataclass(frozen=True)
class SchedulerFacts:
    """What a scheduler reports about one job. ``None`` means that the scheduler has no such fact or did not report
    it."""

    incarnation: str
    running: bool
    requeueable: bool
    """The owner said that the job may be ended and started again (never assumed)."""
    exempt: bool = False
    """The owner asked for no actions: a label, a comment, ``tidegauge run --no-actions``."""
    restarts: int = 0
    """How often it was started again before, by anybody."""
    account: Optional[str] = None
    partition: Optional[str] = None
    """Or queue."""
    namespace: Optional[str] = None
    qos: Optional[str] = None
    array_name: Optional[str] = None
    """How people call a task of an array: ``123_4``."""
    started_unix_s: Optional[float] = None
    ends_unix_s: Optional[float] = None
    """When its time limit ends it."""
    gpu_share: Optional[float] = None
    """Share of each GPU that the job asked for (shard, MPS, time-slice), above 0 and at most 1; ``None``: all of it."""
    can: frozenset[ActionKind] = frozenset(ActionKind)
    """What the adapter is able to do to this job at all."""
    only_told: Optional[str] = None
    """Why nothing is done to it but to tell of it, for people; ``None``: that is not so."""
    handle: Mapping[str, Any] = field(default_factory=dict)
    """For ``JobTarget.handle``."""
    min_severity: Optional[Severity] = None
    """Growth must be at least this severe when the job is acted on, says who decides about it; the policy's own bound
    stands beside it."""
    min_age_s: Optional[float] = None
    """The same of the time for which an incident must have been open."""


@dataclass(frozen=True)
class JobFacts:
    """Everything a policy may use beside the incident. Made by ``tidegauge_scheduler_hooks.facts``."""

    target: JobTarget
    scheduler_facts: Optional[SchedulerFacts]
    """``None``: no adapter knows this job. Then nothing can be done to it."""
    running: bool
    stale: bool
    """Of some of its ranks nobody has heard lately, or since the coordinator was started."""
    world_size: int
    user_name: str
    job_name: Optional[str]
    checkpoint: Optional[CheckpointWay]
    """``None``: it, or another group of its ranks that lives, cannot be asked to save its state in a way that gives
    proof."""
    shared_gpu: bool
    """Another job's ranks are on one of its GPUs."""
    torch_version: Optional[str] = None
    alloc_conf: Optional[str] = None
    """The allocator settings in force (``PYTORCH_CUDA_ALLOC_CONF``, ``PYTORCH_ALLOC_CONF``)."""
    limit_fraction: Optional[float] = None
    """The memory fraction in force; ``None``: no cap."""
    cap_fraction: Optional[float] = None
    """What the cap ought to be, derived from share and measured non-torch bytes (``core.jobs.fraction``)."""
    cap_explanation: Optional[str] = None
    owner_reachable: bool = False
    """There is a way to tell owners that needs no scheduler: a direct message on Slack, a mail."""
    groups_without_checkpoint: tuple[str, ...] = ()
    """Names of the job's groups of ranks, where it has several, that cannot be asked to save their state."""
    culprits: Optional[tuple[int, ...]] = None
    """Ranks that the incident is about, that live, and that do it now
    (``core.incidents.observations.living_culprits``); ``None``: nobody looked."""
    exempted: Optional[str] = None
    """Who exempted the job from actions for a time that is not over, in words (``core.incidents.acts``)."""
    jobs_running: int = 0
    """Jobs that run on the cluster now, this one included: what the circuit breaker counts shares of."""


@dataclass(frozen=True)
class Decision:
    """One action that the policy asks for, with its evidence. It is written to the audit before it is carried out."""

    decision_id: str
    """Made from incident, rule, rung and try: the same situation gives the same id, so that it is stored once."""
    decided_s: float
    action: ActionKind
    disposition: Disposition
    target: JobTarget
    incident: Incident
    facts: JobFacts
    rule: str
    rung: int
    """Position in the rule's ladder, from 0."""
    attempt: int
    """Try of this rung, from 1."""
    reason: str
    """For people: why, in one sentence."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """JSON; what they mean depends on ``action`` and is listed in ``tidegauge_scheduler_hooks.ports``."""
    brake: Optional[str] = None
    """The brake that holds it back, as in docs/policy.md; for people, ``reason`` says it in words."""
    mode: str = "observe"

    @property
    def called(self) -> JobKey:
        """Its job and group of ranks by the names that people know."""
        return self.incident.called._replace(attempt=self.target.job.attempt)


class DecisionStatus(str, Enum):
    """The progress of a decision."""

    DECIDED = "decided"
    """Written down; nothing has been done."""
    STARTED = "started"
    """The adapter is being asked, or was when the coordinator died: it may or may not have been done."""
    FINISHED = "finished"
    """``DecisionRecord.outcome`` says how; for ``would`` and ``withheld`` there is none."""


@dataclass(frozen=True)
class DecisionRecord:
    """A decision as the audit stores it."""

    decision: Decision
    status: DecisionStatus
    outcome: Optional[Outcome] = None
    detail: Optional[str] = None
    """For people: what the scheduler or the job said, or what was seen."""
    started_s: Optional[float] = None
    finished_s: Optional[float] = None
    starts: int = 0
    """How often carrying it out was begun; above 1 after a crash or a temporary failure."""


class AuditError(Exception):
    """The audit cannot be written or read (locked, full, absent). Actions need a written record, so none may follow."""


@dataclass(frozen=True)
class Switches:
    """Switches that a person sets for all actions (``tidegauge policy pause`` and ``resume``)."""

    paused: Optional[str] = None
    """Why nothing is to be done, by whom and since when; ``None``: not paused."""
    breaker_reset_s: Optional[float] = None
    """When the circuit breakers were last reset, on the policy clock."""


@dataclass(frozen=True)
class UnderWay:
    """A decision that is being carried out now."""

    decision_id: str
    action: ActionKind
    job: JobKey
    since_s: float
    what: str
    """For people: "waiting for proof of a checkpoint, 210 s left"."""


@dataclass(frozen=True)
class LoopStatus:
    """Status of incidents, policy and actions: the top of ``tidegauge policy status``."""

    mode: str
    policy_file: Optional[str]
    """``None``: the default policy."""
    policy_problem: Optional[str] = None
    """The file cannot be used: the last good policy, or the default in mode ``observe``, is in force instead."""
    paused: Optional[str] = None
    breaker: Optional[str] = None
    """Why the circuit breaker is open; ``None``: it is closed."""
    user_breakers: tuple[str, ...] = ()
    """Why the breakers of one user's jobs are open, one each: nothing is done to the jobs of these users."""
    store_problem: Optional[str] = None
    """The database cannot be written: incidents are kept in memory, and nothing is decided or done."""
    scheduler_problems: Mapping[str, str] = field(default_factory=dict)
    """By adapter: why it does not answer."""
    incidents_open: int = 0
    under_way: tuple[UnderWay, ...] = ()
    telling: Mapping[str, str] = field(default_factory=dict)
    """By who is told (``slack``, ``alertmanager``, ``grafana``): "ok", or what is wrong. Empty: nobody is."""
    records_problem: Optional[str] = None
    """Why records of jobs, or the memory of incidents, cannot be written."""
