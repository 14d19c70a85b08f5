"""Incidents: problems of a job's memory that somebody should know of, from the first alarm to the end.

One incident per group of ranks in an attempt of a job, and cause: a leak on 64 ranks is one, a leak on rank 3 alone is
one that says so.
Values only; ``core.incidents.tracker`` makes them. Times are unix seconds unless the name says otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.evidence.brief import EvidenceBrief
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import DeviceUuid, JobKey, ProcessId, known_as
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import Band, Severity, Signal, Verdict

MAX_FINDINGS = 16
"""Ranks with their figures in a line of the history, and wherever else an incident occurs many times."""


class IncidentCause(str, Enum):
    """The cause of an incident: the ``cause`` label of ``tidegauge_incidents_total``, matched by policy rules."""

    LEAK = "leak"
    """Live tensors pile up (signal ``allocated``)."""
    FRAGMENTATION = "fragmentation"
    """The allocator holds ever more than tensors explain (signal ``reserved``), and no evidence says that it is CUDA
    graphs."""
    CUDA_GRAPHS = "cuda_graphs"
    """It does so in private pools, as evidence says: CUDA graphs, each with a pool of its own. Such an incident was one
    of fragmentation until then."""
    OUTSIDE_ALLOCATOR = "outside_allocator"
    """Device memory grows outside PyTorch: communicators, contexts, other libraries (signal ``nontorch``)."""
    HOST_MEMORY = "host_memory"
    """Host memory of the rank's process tree grows (signal ``host``)."""
    OUT_OF_MEMORY = "out_of_memory"
    """PyTorch's allocator raised ``torch.OutOfMemoryError`` on at least one rank."""
    SHARE_EXCEEDED = "share_exceeded"
    """A rank takes more of a GPU that it shares with others than the share that its job asked for."""

    @property
    def is_growth(self) -> bool:
        """Whether the cause comes from a verdict of the detector."""
        return self not in (IncidentCause.OUT_OF_MEMORY, IncidentCause.SHARE_EXCEEDED)

    @property
    def as_seen(self) -> IncidentCause:
        """The cause by the growing signal alone, before evidence says more."""
        return IncidentCause.FRAGMENTATION if self is IncidentCause.CUDA_GRAPHS else self


CAUSE_OF_SIGNAL = {
    Signal.ALLOCATED: IncidentCause.LEAK,
    Signal.RESERVED: IncidentCause.FRAGMENTATION,
    Signal.NONTORCH: IncidentCause.OUTSIDE_ALLOCATOR,
    Signal.HOST: IncidentCause.HOST_MEMORY,
}


class IncidentState(str, Enum):
    """The state of an incident."""

    OPEN = "open"
    RECOVERING = "recovering"
    """What it is about has stopped, not yet for long enough to believe it. Coming back makes it open again."""
    CLOSED = "closed"


class Closure(str, Enum):
    """The reason why an incident closed."""

    RECOVERED = "recovered"
    """It stopped, and did not come back for the time that ``IncidentRules`` asks for."""
    JOB_ENDED = "job_ended"
    """No process of this attempt lives any more."""
    CULPRITS_ENDED = "culprits_ended"
    """The processes that did it have all ended, and the job goes on: the others do not do it, or are other replicas."""
    RAN_OUT_OF_MEMORY = "ran_out_of_memory"
    """What grew ended in an out-of-memory error, which ended the job, or the processes that did it."""


class IncidentKey(NamedTuple):
    """Identity of an incident: at most one is open at a time for each ``as_seen`` key."""

    job: JobKey
    cause: IncidentCause

    @property
    def as_seen(self) -> IncidentKey:
        return self._replace(cause=self.cause.as_seen)


class OomForecast(NamedTuple):
    """When an incident's growth was expected to end."""

    at_unix_s: float
    """When it was made."""
    seconds: Band
    """To out-of-memory, from then."""


class OomEnd(NamedTuple):
    """The out-of-memory error that a rank has ended by."""

    rank: int
    """The first to fail."""
    oom: OomRecord
    others: int = 0
    """How many further ranks failed by then."""
    number: Optional[int] = None
    """The incident of the error."""
    ended_job: bool = False
    """The attempt of the job has ended; else a part of its ranks, as far as is known."""


class ToldAs(NamedTuple):
    """The first of the incidents that people are told of as one: those of one cause in replicas of a server, as long as
    one of them is not closed."""

    number: int
    opened_unix_s: float


@dataclass(frozen=True)
class RankFinding:
    """One rank's part in an incident, as of the last update."""

    rank: int
    hostname: str
    node_id: str
    process: ProcessId
    gpu: Optional[int]
    uuid: Optional[DeviceUuid]
    step: int
    verdict: Verdict
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: Optional[int]
    limit_bytes: Optional[int]
    oom: Optional[OomRecord] = None
    host_process: Optional[HostProcess] = None
    """Where it is host memory that grows: the process of the rank that grew most."""
    pod: Optional[str] = None
    """``namespace/name`` of the pod that it is in, as the API server says; ``None`` outside Kubernetes."""


@dataclass(frozen=True)
class Incident:
    """An incident with all its facts. ``None`` means unknown or not applicable."""

    number: int
    """1, 2, 3 … in one store: what people call it."""
    key: IncidentKey
    state: IncidentState
    severity: Severity
    user_name: str
    job_name: Optional[str]
    scheduler: Optional[str]
    world_size: int
    findings: tuple[RankFinding, ...]
    """The ranks concerned, the one to look at first first. While it recovers: as they were at the last alarm."""
    common: bool
    """Most ranks do it alike: a workload that grows, or a leak in code that all of them run."""
    opened_unix_s: float
    updated_unix_s: float
    onset_step: Optional[int] = None
    """The first bad step: the earliest onset among the ranks."""
    bytes_per_step: Optional[Band] = None
    """Of the rank that grows fastest."""
    seconds_to_oom: Optional[Band] = None
    """Of the rank that runs out first, counted from ``updated_unix_s``."""
    grown_bytes: Optional[int] = None
    worst_severity: Optional[Severity] = None
    """The highest that it ever had."""
    easing_since_unix_s: Optional[float] = None
    """Since when less than ``severity`` has been seen without a break, while it is open; ``None``: it is not."""
    recovering_since_unix_s: Optional[float] = None
    """Since when nothing has been seen without a break, while it recovers."""
    closed_unix_s: Optional[float] = None
    closure: Optional[Closure] = None
    flaps: int = 0
    """How often it came back while it recovered."""
    stale: bool = False
    """A node of the job has not reported lately: figures are old, and nothing may be done on them."""
    unheard: bool = False
    """It is stale because nothing has been heard of any of its ranks since the coordinator started, for a while: they
    may have ended before."""
    explanation: Optional[str] = None
    """For people: for an OOM, what it was and whether trying again makes sense."""
    snapshots: tuple[str, ...] = ()
    """Where the evidence lies (snapshot store, reports): filled by whoever makes it."""
    reports: tuple[str, ...] = ()
    evidence: tuple[EvidenceBrief, ...] = ()
    """The newest of each rank, the one that says most first."""
    ranks_left_out: int = 0
    """How many further ranks are concerned, whose findings were left out: see ``shortened``."""
    group_name: str = ""
    """What people call the group of ranks that it is about; empty where the job has one."""
    array_name: Optional[str] = None
    """``4811_3``, as ``squeue`` writes a task of a Slurm array."""
    foreseen: Optional[OomForecast] = None
    """The first forecast of an out-of-memory error."""
    ran_out: Optional[OomEnd] = None
    """The error that a rank of it has ended by."""
    change: Optional[str] = None
    """What no earlier run of the same job did (``JobView.change``)."""
    grew_in: Optional[int] = None
    """For an out-of-memory error: the number of the incident of growth that it ended, or came in."""
    replicas: Optional[Replicas] = None
    """As ``JobView.replicas``, when its figures were last seen."""
    told_as: Optional[ToldAs] = None
    """Of a replica of an inference server: the first incident of the same story, which may be this one; ``None`` for
    any other job."""

    @property
    def told_under(self) -> ToldAs:
        """The incident under which people are told of it: this one, but for replicas of a server."""
        return self.told_as or ToldAs(self.number, self.opened_unix_s)

    @property
    def is_open(self) -> bool:
        """Not closed."""
        return self.state is not IncidentState.CLOSED

    @property
    def called(self) -> JobKey:
        """Its job and group of ranks by the names that people know."""
        job = self.key.job
        return job._replace(job_id=self.array_name or known_as(job.job_id, self.job_name), group=self.group_name)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global ranks concerned, worst first; without those that were left out."""
        return tuple(finding.rank for finding in self.findings)

    def shortened(self, most: Optional[int]) -> Incident:
        """A copy with the findings of only the ``most`` worst ranks, the others counted; ``None``: of all."""
        if most is None or len(self.findings) <= most:
            return self
        left_out = self.ranks_left_out + len(self.findings) - most
        return replace(self, findings=self.findings[:most], ranks_left_out=left_out)


class ChangeKind(str, Enum):
    """The kind of change to an incident."""

    OPENED = "opened"
    ESCALATED = "escalated"
    """Its severity rose."""
    EASED = "eased"
    """Its severity fell, and stayed low for a while."""
    SPREAD = "spread"
    """More ranks are concerned."""
    EVIDENCE = "evidence"
    """The line, the holder or the cause has become known, or better known."""
    UPDATED = "updated"
    """Only figures changed; told at most once per ``IncidentRules.update_every_s``."""
    RECOVERING = "recovering"
    REOPENED = "reopened"
    """It came back while it recovered."""
    CLOSED = "closed"


class IncidentChange(NamedTuple):
    """One line of an incident's history: the incident after the change. Read from a database it has at most
    ``MAX_FINDINGS`` findings."""

    kind: ChangeKind
    at_unix_s: float
    incident: Incident
