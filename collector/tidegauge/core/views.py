"""A node's state at one moment, as the agent hands it to the exporter and the coordinator.

``None`` is a reading that could not be had; it becomes an absent sample, never 0. Bytes unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property, partial
from typing import Final, Optional

from tidegauge.core.evidence import Evidence
from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.host_memory import HostProcess, NodeMemory
from tidegauge.core.ids import DeviceUuid, JobKey, ProcessId, RankIdentity, RankKey
from tidegauge.core.jobs.kubernetes import PodPlace
from tidegauge.core.jobs.launches import LaunchSummary
from tidegauge.core.jobs.rank_groups import GroupMember
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.jobs.slurm import SlurmPlace, array_name
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.orders import OrderResult
from tidegauge.core.profile.categories import Category
from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import LeakState, Severity, Signal, Verdict

NEARLY_FULL: Final = 0.85
"""The share of a limit, or of a GPU, from which on people are shown that it is nearly full: what is left is no more
than the 15 % that fragmentation may take before its alert (``TidegaugeFragmentation``). It is a hint, not a problem: a
well-tuned job is there all the time."""


@dataclass(frozen=True)
class RankSummary:
    """One rank on one GPU, small enough to send to the coordinator every second."""

    identity: RankIdentity
    process: ProcessId
    uid: int
    """Owner of the process, from the kernel."""
    user_name: str
    gpu: Optional[int]
    """NVML index of the GPU (as dcgm-exporter's ``gpu`` label), never the CUDA ordinal."""
    uuid: Optional[DeviceUuid]
    step: int
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: Optional[int]
    """NVML's bytes for the process minus reserved."""
    limit_bytes: Optional[int]
    """What this rank may take on its GPU: the fraction cap where there is one, else the card's total."""
    host_rss_bytes: Optional[int]
    """Anonymous and shared memory of its process and its descendants (``HostMemory.held_bytes``)."""
    last_sample_unix_s: float
    verdict: Verdict
    alive: bool
    """False for a rank that ended and is kept a little longer, so that its last counters are scraped."""
    cap_fraction: Optional[float] = None
    """The memory fraction in force; ``None``: no cap that we know of."""
    last_oom: Optional[OomRecord] = None
    """The latest ``torch.OutOfMemoryError`` of the rank."""
    launch: Optional[ProcessId] = None
    """The ``tidegauge run`` that it descends from, as the kernel says."""
    slurm: Optional[SlurmPlace] = None
    """Job and step as the node's slurmd says; ``None`` outside Slurm."""
    pod: Optional[PodPlace] = None
    """The pod whose cgroup it is in; ``None`` outside Kubernetes."""
    children_bytes: Optional[int] = None
    """What NVML says that its child processes hold, on all GPUs of the node (``gpu_children``); ``None``: not known."""
    gpu_children: int = 0
    """Processes on a GPU that descend from it and are no ranks of their own, as the kernel and NVML say."""
    data_workers: int = 0
    """Of ``gpu_children``: those that are a DataLoader's workers by their name, or that ``multiprocessing`` started."""
    host_processes: tuple[HostProcess, ...] = ()
    """The largest processes of ``host_rss_bytes``; none while only the rank's own is known."""
    bound: Optional[GrowthBound] = None
    """What ends the growth that ``verdict`` speaks of, by evidence; where it holds, the verdict is without danger."""
    parent: Optional[ProcessId] = None
    """The living rank that it descends from, else its parent process when it was found, as the kernel says."""
    container_id: Optional[str] = None
    """Of the container engine's, outside pods and Slurm, as the kernel says; ``None`` in none."""
    user_namespace_owner: Optional[int] = None
    """The user, not root, who made the user namespace that it is in; ``None`` in the node's own, and in root's."""
    allocated_peak_bytes: Optional[int] = None
    """PyTorch's own peak, since the start or since the program reset it; so is ``reserved_peak_bytes``."""
    reserved_peak_bytes: Optional[int] = None
    detached: bool = False
    """Its probe's last record is that of a process that ends by itself; without it a signal ended the process."""
    inactive_split_bytes: Optional[int] = None
    """Free parts of blocks that PyTorch has split. ``None``, as the next two: the agent does not say."""
    alloc_retries: Optional[int] = None
    """Since attach, as ``ooms``."""
    ooms: Optional[int] = None
    profile_problem: Optional[str] = None
    """Why there is no new memory profile of it although one is wanted, for people: put off, refused, given up."""
    allocated_highest_bytes: Optional[int] = None
    """The highest that the agent has read of it since its memory fraction was set, PyTorch's peaks included: a program
    may reset those; so is ``reserved_highest_bytes``. ``None``: the agent does not say."""
    reserved_highest_bytes: Optional[int] = None

    @property
    def highest_allocated_bytes(self) -> int:
        """The peak of allocated memory as far as it is known, at least what is allocated now."""
        return max(self.allocated_bytes, self.allocated_peak_bytes or 0, self.allocated_highest_bytes or 0)

    @property
    def highest_reserved_bytes(self) -> int:
        """The same of reserved memory."""
        return max(self.reserved_bytes, self.reserved_peak_bytes or 0, self.reserved_highest_bytes or 0)

    @property
    def gpu_bytes(self) -> Optional[int]:
        """The total of its GPU, whatever the cap, to a few bytes; ``None`` where ``limit_bytes`` is."""
        if self.limit_bytes is None or not self.cap_fraction:
            return self.limit_bytes
        return round(self.limit_bytes / self.cap_fraction)

    @property
    def tenant(self) -> Tenant:
        """The tenant of the rank on its node."""
        if self.pod is None:
            uid = self.uid if self.user_namespace_owner is None else self.user_namespace_owner
            return Tenant(uid, container_id=self.container_id)
        if self.pod.namespace is None:
            return Tenant(None, pod_uid=self.pod.pod_uid)
        return Tenant(None, self.pod.namespace)

    @property
    def is_bounded(self) -> bool:
        """Whether its growth is known to end before memory does."""
        return self.bound is not None and self.bound.holds

    def group_member(self, hostname: str, *, lives: bool) -> GroupMember:
        """The member of its job's groups of ranks that this rank, seen on this host, is."""
        return GroupMember(
            place=(hostname, self.process),
            rank=int(self.identity.rank),
            world_size=self.identity.world_size,
            lives=lives,
            run_id=self.identity.run_id,
            store=self.identity.store,
            step=None if self.slurm is None else self.slurm.step_id,
            parent=self.parent,
            pod=None if self.pod is None else self.pod.pod,
            container=None if self.pod is None else self.pod.container,
            attempt=self.identity.attempt,
            attempts_each=self.identity.attempts_each,
            replica="" if self.pod is None else self.pod.replica,
        )

    @property
    def used_bytes(self) -> int:
        """What it holds of its GPU, as far as is known: its allocator's memory and what is outside it."""
        return self.reserved_bytes + (self.nontorch_bytes or 0)


@dataclass(frozen=True)
class RankView(RankSummary):
    """A rank as its own node sees it now: its summary, and what ``/metrics`` and evidence collection need besides."""

    active_bytes: Optional[int] = None
    requested_bytes: Optional[int] = None
    steps: int = 0
    """Since attach."""
    group: str = ""
    """Its group of ranks by the name that people see (``core.jobs.rank_groups``); empty where the job has one group."""
    hidden: tuple[RankView, ...] = ()
    """Processes that have its name too and are not shown: those that it came after, its helpers, its launcher."""
    profile_bytes: Mapping[Category, int] = field(default_factory=dict)
    """What its memory was made of at the peak of its last memory profile; empty without one."""

    @property
    def key(self) -> RankKey:
        return self.identity.key

    def summary(self) -> RankSummary:
        """The part of it that goes to the coordinator."""
        own, summary = self.__dict__, object.__new__(RankSummary)
        summary.__dict__.update({name: own[name] for name in _SUMMARY_FIELDS})
        return summary


_SUMMARY_FIELDS = tuple(one.name for one in fields(RankSummary))
_UNSAID = RankView.__new__(RankView)
_UNSAID.__dict__.update(
    {one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(RankView)}
)


def with_fields(view: RankView, **fields: object) -> RankView:
    """``dataclasses.replace``, which sets every field of a frozen value again, in a fifteenth of its time: this is done
    with every rank at every poll."""
    copy = object.__new__(RankView)
    copy.__dict__.update(view.__dict__, **fields)
    return copy


view_of = partial(with_fields, _UNSAID)
"""``RankView`` of these fields, among which are all that have no default, in a fraction of its time."""


@dataclass(frozen=True)
class GpuView:
    """One GPU (or MIG instance) as NVML reports it now."""

    uuid: DeviceUuid
    gpu: int
    """NVML index."""
    name: str
    total_bytes: Optional[int]
    used_bytes: Optional[int]
    other_processes_bytes: Optional[int]
    """Bytes of processes that are no watched rank and descend from none."""
    usable_bytes: Optional[int] = None
    """The total less what the driver keeps for itself: CUDA's total, which memory fractions are fractions of."""
    process_bytes: Optional[Mapping[int, Optional[int]]] = None
    """Of each process on it, by pid; ``None`` where the driver does not give them."""
    unheld_bytes: Optional[int] = None
    """In use, and of no process (``core.detector.unheld``); ``None``: that cannot be told, or the agent does not."""
    unheld_for_s: Optional[float] = None
    """For how long that has been enough to tell people; ``None``: it is not."""

    def bytes_beside(self, pid: int) -> Optional[int]:
        """What all other processes hold on it; ``None`` where that is not known of each."""
        others = (
            None if self.process_bytes is None else [size for one, size in self.process_bytes.items() if one != pid]
        )
        return None if others is None or None in others else sum(filter(None, others))


@dataclass(frozen=True)
class NodeView:
    """Everything that one agent knows: the input of a scrape."""

    hostname: str
    cluster: str
    now_unix_s: float
    ranks: tuple[RankView, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    collect_success: Mapping[str, bool] = field(default_factory=dict)
    """By source: ``rings``, ``nvml``, ``proc``, ``slurm``, ``pod_resources``, ``host_memory``, ``evidence`` (from the
    first piece on).
    One that this node does not have is absent."""
    collect_duration_s: Mapping[str, float] = field(default_factory=dict)
    rings_skipped: Mapping[str, int] = field(default_factory=dict)
    """Ring files refused so far, by reason (``truncated``, ``version``, ``magic``, ``symlink``, ``owner`` …)."""
    records_lost: int = 0
    """Records overwritten before they were read so far, by earlier agents too."""
    records_refused: int = 0
    """Well-formed records whose figures cannot be true, so far."""
    detector_points: int = 0
    """Readings that the leak detector was given, of all ranks, so far."""
    claims_overruled: Mapping[str, int] = field(default_factory=dict)
    """Ranks so far whose claim the kernel or the driver contradicts, by claim (``job_id``, ``uuid``); ``rank``: they
    named more ranks than one process is."""
    series_dropped: Mapping[str, int] = field(default_factory=dict)
    poll_deferred: Mapping[str, int] = field(default_factory=dict)
    """What polls put off to a later one so far, by reason: rings that are new (``opened``), rings of which not all
    records were read (``records``), rings of processes that are gone that are still to be deleted (``orphans``)."""
    launches: tuple[LaunchSummary, ...] = ()
    """Every ``tidegauge run`` of this node, as of a moment before the ranks were looked at."""
    memory: Optional[NodeMemory] = None
    """Of the node; ``None`` where it was not read."""
    ended_launches: tuple[LaunchSummary, ...] = ()
    """Those that ended lately, with their exit status."""


@dataclass(frozen=True)
class NodeSummary:
    """An agent's report to the coordinator: no samples, only the current state of each rank."""

    node_id: str
    """The engine's name of the node (Ray's node id)."""
    hostname: str
    agent_pid: int
    incarnation: str
    """Changes when the agent process restarts."""
    metrics_address: Optional[str]
    """``host:port`` of this node's ``/metrics``, ``https://host:port`` where it is served over TLS; what ``/sd`` hands
    to Prometheus."""
    sent_unix_s: float
    ranks: tuple[RankSummary, ...] = ()
    gpus: tuple[GpuView, ...] = ()
    launches: tuple[LaunchSummary, ...] = ()
    """Every ``tidegauge run`` of this node, also before it has a rank."""
    order_results: tuple[OrderResult, ...] = ()
    """What came of the coordinator's orders since the last report that was answered."""
    settings_digest: Optional[str] = None
    """``core.jobs.settings.digest`` of the settings for jobs that lie on this node; ``None``: they cannot be
    written."""
    slurm_node: Optional[bool] = None
    """Whether this is a node of Slurm's, where jobs run; ``None``: the agent does not say."""
    evidence: tuple[Evidence, ...] = ()
    """What the coordinator has not said yet that it has (``ReportReply.evidence_kept``)."""
    profiles: tuple[RankProfile, ...] = ()
    """The same of memory profiles (``ReportReply.profiles_kept``)."""
    pods_wanted: tuple[str, ...] = ()
    """Uids of pods with ranks of which the agent wants to know who they are (``ReportReply.pods``)."""
    sent_mono_s: Optional[float] = None
    """When it was sent, on CLOCK_MONOTONIC of the node: tells the order of one incarnation's reports, which
    ``sent_unix_s`` does not where somebody sets the clock. ``None``: the agent does not say."""
    ended_launches: tuple[LaunchSummary, ...] = ()
    """Those that ended lately, with their exit status."""
    opener_answers: Optional[bool] = None
    """Whether the agent's opener does; ``None``: it has none."""


OWNER_SEPARATOR = ", "
MAX_OWNERS = 4
"""That are named."""
GpuPlace = tuple[str, DeviceUuid]
"""Host and GPU; the host too, because test rigs and virtual machines repeat uuids."""


@dataclass(frozen=True)
class JobView:
    """A group of ranks of a job across its nodes, as the coordinator sees it. Most jobs have one group.

    What is looked for in all jobs every second is found once for each view: a job of which nothing was heard stays the
    same object (``cluster.coordinator.job_board``).
    """

    job_id: str
    attempt: int
    job_name: Optional[str]
    user_name: str
    """The owner, or several names (``name_owners``): then nobody owns the job."""
    scheduler: Optional[str]
    world_size: int
    hostnames: tuple[str, ...]
    ranks: tuple[RankSummary, ...]
    state: LeakState
    severity: Optional[Severity]
    signal: Optional[Signal]
    suspects: tuple[int, ...]
    """Global ranks whose verdict is at least suspected, worst first."""
    running: bool
    stale: tuple[int, ...] = ()
    """Global ranks whose node has not reported lately: their figures are old, they may well be training."""
    common: bool = False
    """Most ranks grow alike: a workload that grows, or a leak in code that all of them run; no single rank is odd."""
    rank_nodes: tuple[str, ...] = ()
    """The engine's node id of each of ``ranks``, in the same order."""
    rank_hostnames: tuple[str, ...] = ()
    """The host of each of ``ranks``, in the same order."""
    launch: Optional[LaunchSummary] = None
    """The ``tidegauge run`` that its ranks descend from, if they all descend from one."""
    launch_node: Optional[str] = None
    """The engine's node id of the node where ``launch`` runs."""
    exempt: bool = False
    """A ``tidegauge run --no-actions`` is above one of its living ranks, be it one of several."""
    group: str = ""
    """Which of the job's groups of ranks; empty for the first (``JobKey.group``)."""
    group_name: str = ""
    """What people call the group; empty where the job has one."""
    change: Optional[str] = None
    """What no earlier run of the same job did, without a full stop (``core.job_records.earlier_runs``); ``None``:
    nothing, or there are too few."""
    replicas: Optional[Replicas] = None
    """Of the inference server that this is a replica of; ``None`` for any other job."""

    @cached_property
    def key(self) -> JobKey:
        """The owner comes from the ranks, whose uid is the kernel's. A job without ranks has no key: ``ValueError``."""
        if not self.ranks:
            raise ValueError(f"job {self.job_id} attempt {self.attempt} has no ranks")
        return JobKey(self.job_id, self.attempt, self.ranks[0].uid, self.group)

    @cached_property
    def numbers(self) -> frozenset[int]:
        """The numbers of its ranks."""
        return frozenset([int(rank.identity.rank) for rank in self.ranks])

    @cached_property
    def living_numbers(self) -> frozenset[int]:
        return frozenset([int(rank.identity.rank) for rank in self.ranks if rank.alive])

    @cached_property
    def living_places(self) -> tuple[tuple[GpuPlace, int], ...]:
        """The places of its living ranks: each one's GPU, and its index in ``ranks``."""
        hosts = self.rank_hostnames or tuple(rank.identity.hostname for rank in self.ranks)
        return tuple(
            [
                ((host, rank.uuid), index)
                for index, (host, rank) in enumerate(zip(hosts, self.ranks))
                if rank.alive and rank.uuid is not None
            ]
        )

    @cached_property
    def places(self) -> frozenset[GpuPlace]:
        """The GPUs of its living ranks."""
        return frozenset([place for place, _ in self.living_places])

    @cached_property
    def growing_signals(self) -> frozenset[Signal]:
        """The signals of all verdicts that are not OK, also of stale or ended ranks."""
        verdicts = [rank.verdict for rank in self.ranks if rank.verdict.state is not LeakState.OK]
        return frozenset(verdict.signal for verdict in verdicts if verdict.signal is not None)

    @cached_property
    def has_oom(self) -> bool:
        """Whether one of its ranks shows an out-of-memory error."""
        return any(rank.last_oom is not None for rank in self.ranks)

    @cached_property
    def bounds(self) -> Mapping[int, GrowthBound]:
        """The bounds of growth by rank."""
        return {int(rank.identity.rank): rank.bound for rank in self.ranks if rank.bound is not None}

    @cached_property
    def asks_for_share(self) -> bool:
        """Whether the job may have asked for only a share of its GPUs."""
        if self.launch is not None and self.launch.gpu_share is not None:
            return True
        return any(rank.identity.gpu_share is not None for rank in self.ranks if rank.alive)

    @cached_property
    def is_known_to_live(self) -> bool:
        """Whether a node that has reported lately sees a living process of the job."""
        return not self.living_numbers <= frozenset(self.stale)

    @cached_property
    def is_in_slurm(self) -> bool:
        """Whether one of its living ranks is in a Slurm job, whoever started it there."""
        return any(rank.slurm is not None for rank in self.ranks if rank.alive)


def job_array_name(job: JobView) -> Optional[str]:
    """``123_4``, by which people know a task of a Slurm array; ``None`` for a job of its own."""
    return next(filter(None, (array_name(rank.slurm) for rank in job.ranks if rank.slurm is not None)), None)


def name_owners(names: Iterable[str]) -> str:
    """A job's owner; several names only where nodes call its uid differently."""
    return OWNER_SEPARATOR.join(sorted(set(names))[:MAX_OWNERS])


def ranks_by_gpu(jobs: Iterable[JobView]) -> Mapping[GpuPlace, Sequence[tuple[JobView, int]]]:
    """The living ranks on each GPU: the job of each, and its index in ``JobView.ranks``."""
    found: dict[GpuPlace, list[tuple[JobView, int]]] = {}
    for job in jobs:
        for place, index in job.living_places:
            found.setdefault(place, []).append((job, index))
    return found
