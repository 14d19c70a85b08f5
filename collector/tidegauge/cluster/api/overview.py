"""Jobs and ranks in one line each, for screens: the size of an answer does not grow with the cluster. Pure.

``JobView`` has everything about every rank: 90 MB for a hundred jobs with a thousand ranks each.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidegauge.cluster.coordinator.grouping import look_first
from tidegauge.cluster.views import NodeHealth, NodeStatus
from tidegauge.core.evidence.growth_bound import GrowthBound
from tidegauge.core.host_memory import HostProcess
from tidegauge.core.ids import JobKey, known_as
from tidegauge.core.incidents.actions import LoopStatus
from tidegauge.core.jobs.replicas import Replicas
from tidegauge.core.verdicts import Band, LeakState, Severity, Signal
from tidegauge.core.views import GpuPlace, JobView, RankSummary, job_array_name, ranks_by_gpu
from tidegauge.core.wire import Wire, to_wire

MAX_JOBS = 1000
"""Jobs in one overview, the most alarming first."""
MAX_RANKS = 2048
"""Ranks on one job's page, the ones to look at first: about 2 MB."""

MAX_NODES = 4000
"""Nodes on one page."""
MAX_NAMED_JOBS = 8
"""Jobs that are named in the line of a node."""

MemoryLine = Callable[[str, RankSummary], tuple[int, ...]]
"""How the memory of a rank on a node (the engine's id) went: bytes that it held, evenly over its life, oldest first."""


class RankLine(NamedTuple):
    """One rank. ``None`` means unknown or not applicable."""

    rank: int
    hostname: str
    gpu: int | None
    pid: int
    step: int
    allocated_bytes: int
    reserved_bytes: int
    nontorch_bytes: int | None
    limit_bytes: int | None
    host_rss_bytes: int | None
    state: LeakState
    severity: Severity | None
    signal: Signal | None
    cause: str | None
    onset_step: int | None
    bytes_per_step: Band | None
    seconds_to_oom: Band | None
    steps_to_oom: Band | None
    alive: bool
    stale: bool
    """Its node has not reported lately: the figures are old."""
    cap_fraction: float | None
    oom_at_unix_s: float | None
    """When it last ran out of memory."""
    line: tuple[int, ...] = ()
    """As ``MemoryLine``."""
    slurm_step: str | None = None
    """Of its job, as Slurm counts them: ``0``, ``batch``; ``None`` outside Slurm."""
    pod: str | None = None
    """``namespace/name``; its uid where nobody has said yet whose it is; ``None`` outside Kubernetes."""
    container: str | None = None
    """Its name in that pod."""
    host_processes: tuple[HostProcess, ...] = ()
    """The largest processes of ``host_rss_bytes``, as far as they are known."""
    bound: GrowthBound | None = None
    """What ends its growth."""

    @property
    def used_bytes(self) -> int:
        """What it holds of its GPU, as far as that is known."""
        return self.reserved_bytes + (self.nontorch_bytes or 0)

    @property
    def used_share(self) -> float | None:
        """The same as a share of what it may take; above 1 where others leave it less than it holds."""
        return self.used_bytes / self.limit_bytes if self.limit_bytes else None


class JobLine(NamedTuple):
    """One attempt of one user's job."""

    job_id: str
    attempt: int
    uid: int
    job_name: str | None
    user_name: str
    scheduler: str | None
    nodes: int
    world_size: int
    alive: int
    """Ranks that are."""
    stale: int
    """Ranks whose node has not reported lately."""
    step: int
    """The furthest."""
    state: LeakState
    severity: Severity | None
    signal: Signal | None
    common: bool
    """Most ranks grow alike."""
    suspects: int
    """Ranks that are at least suspected."""
    running: bool
    exempt: bool
    used_bytes: int
    """Of the fullest rank, as is ``used_share``."""
    used_share: float | None
    first: RankLine
    """The rank to look at first."""
    array: str | None = None
    """``123_4``, by which people know a task of a Slurm array."""
    group: str = ""
    """Which of the job's groups of ranks (``JobKey.group``)."""
    group_name: str = ""
    """What people call it; empty where the job has one."""
    replicas: Replicas | None = None
    """``JobView.replicas``."""

    @property
    def has_steps(self) -> bool:
        """It has counted a step, or is a server, of which nobody expects one."""
        return self.step > 0 or self.replicas is not None


@dataclass(frozen=True)
class Overview:
    """The whole cluster on one page."""

    cluster: str
    version: str
    now_unix_s: float
    nodes: Mapping[str, int]
    """How many by health."""
    gpus: int
    gpu_used_bytes: int | None
    gpu_total_bytes: int | None
    actions: LoopStatus
    jobs: tuple[JobLine, ...]
    left_out: int = 0
    """Jobs that are not told, the least alarming."""


@dataclass(frozen=True)
class JobPage:
    """One job with its ranks; the rank to look at first comes first."""

    now_unix_s: float
    job: JobLine
    ranks: tuple[RankLine, ...]
    left_out: int = 0
    """Ranks that are not told."""


class GpuLine(NamedTuple):
    """One GPU, or MIG instance, of a node. ``None`` means unknown."""

    gpu: int
    """NVML index."""
    total_bytes: int | None
    used_bytes: int | None
    watched_bytes: int
    """What its watched ranks hold of it, as far as is known; those that the viewer may not see count, too."""
    other_processes_bytes: int | None
    """Bytes of processes that are no watched rank and descend from none."""
    ranks: int
    """Watched ranks that are alive on it."""


class NodeLine(NamedTuple):
    """One node with its GPUs."""

    node_id: str
    hostname: str
    health: NodeHealth
    last_report_age_s: float | None
    """``None``: no report yet."""
    ranks: int
    """Alive at the last report."""
    gpus: tuple[GpuLine, ...]
    jobs: tuple[str, ...] = ()
    """Who is on it, "48211 ada", as far as the viewer may see them: the first ``MAX_NAMED_JOBS``."""
    more_jobs: int = 0
    """Further jobs that the viewer may see."""


@dataclass(frozen=True)
class NodesPage:
    """All nodes, by name."""

    cluster: str
    now_unix_s: float
    nodes: tuple[NodeLine, ...]
    left_out: int = 0
    """Nodes that are not told."""


class RankOnGpu(NamedTuple):
    """A rank on a node, and whose it is; ``job_id`` to ``group`` identify the job in a request."""

    job_id: str
    attempt: int
    uid: int
    group: str
    job_name: str | None
    user_name: str
    rank: RankLine
    array: str | None = None
    group_name: str = ""


@dataclass(frozen=True)
class NodePage:
    """One node with the ranks on it that the viewer may see, by GPU."""

    now_unix_s: float
    node: NodeLine
    ranks: tuple[RankOnGpu, ...]
    left_out: int = 0
    """Ranks that are not told."""


def overview(
    jobs: Sequence[JobView],
    nodes: Sequence[NodeStatus],
    actions: LoopStatus,
    line_of: Callable[[JobView], JobLine],
    *,
    cluster: str,
    version: str,
    now_unix_s: float,
) -> Overview:
    """The figures of one screen; ``jobs`` are sorted, the most alarming first."""
    gpus = [gpu for node in nodes if node.health is not NodeHealth.GONE for gpu in node.gpus]
    return Overview(
        cluster=cluster,
        version=version,
        now_unix_s=now_unix_s,
        nodes=Counter(node.health.value for node in nodes),
        gpus=len(gpus),
        gpu_used_bytes=_sum([gpu.used_bytes for gpu in gpus]),
        gpu_total_bytes=_sum([gpu.total_bytes for gpu in gpus]),
        actions=actions,
        jobs=tuple(line_of(job) for job in jobs[:MAX_JOBS]),
        left_out=max(len(jobs) - MAX_JOBS, 0),
    )


def job_page(
    job: JobView, memory_line: MemoryLine, *, now_unix_s: float, rank: int | None = None, most: int = MAX_RANKS
) -> JobPage:
    """One job with at most ``most`` of its ranks, or with the one rank ``rank``."""
    asked = [place for place, each in enumerate(job.ranks) if rank in (None, each.identity.rank)]
    first = heapq.nsmallest(most, asked, key=lambda place: look_first(job.ranks[place]))
    stale = frozenset(job.stale)
    ranks = tuple(_rank_line(job, place, stale, memory_line) for place in first)
    return JobPage(now_unix_s, job_line(job, memory_line), ranks, len(asked) - len(ranks))


def nodes_page(
    nodes: Sequence[NodeStatus],
    seen: Sequence[JobView],
    every: Sequence[JobView],
    *,
    cluster: str,
    now_unix_s: float,
    most: int = MAX_NODES,
) -> NodesPage:
    """All nodes, with the names of the jobs ``seen``; the bytes of GPUs count the ranks of ``every`` job."""
    on, named = ranks_by_gpu(every), _named(seen)
    lines = tuple(_node_line(node, on, named.get(node.node_id, ())) for node in nodes[:most])
    return NodesPage(cluster, now_unix_s, lines, max(len(nodes) - most, 0))


def node_page(
    node: NodeStatus,
    seen: Sequence[JobView],
    every: Sequence[JobView],
    memory_line: MemoryLine,
    *,
    now_unix_s: float,
    most: int = MAX_RANKS,
) -> NodePage:
    """One node with at most ``most`` ranks of the jobs ``seen``."""
    there = [
        (job, place)
        for job in seen
        for place, (rank, node_id) in enumerate(zip(job.ranks, job.rank_nodes))
        if node_id == node.node_id and rank.alive
    ]
    there.sort(key=lambda one: (one[0].ranks[one[1]].gpu is None, one[0].ranks[one[1]].gpu or 0))
    ranks = tuple(
        RankOnGpu(
            job.job_id, job.attempt, job.ranks[place].uid, job.group, job.job_name, job.user_name,
            _rank_line(job, place, job.stale, memory_line), job_array_name(job), job.group_name,
        )
        for job, place in there[:most]
    )  # fmt: skip
    line = _node_line(node, ranks_by_gpu(every), _named(seen).get(node.node_id, ()))
    return NodePage(now_unix_s, line, ranks, max(len(there) - most, 0))


_Ranks = Mapping[GpuPlace, Sequence[tuple[JobView, int]]]
"""What ``ranks_by_gpu`` returns."""


def _named(jobs: Sequence[JobView]) -> Mapping[str, Sequence[str]]:
    """The jobs on each node as people call them."""
    named: dict[str, dict[str, None]] = {}
    for job in jobs:
        words = f"{job_array_name(job) or known_as(job.job_id, job.job_name)} {job.user_name}"
        for node_id in {node_id for rank, node_id in zip(job.ranks, job.rank_nodes) if rank.alive}:
            named.setdefault(node_id, {})[words] = None
    return {node_id: tuple(words) for node_id, words in named.items()}


def _node_line(node: NodeStatus, on: _Ranks, jobs: Sequence[str]) -> NodeLine:
    gpus = []
    for gpu in sorted(node.gpus, key=lambda gpu: gpu.gpu):
        held = [job.ranks[index].used_bytes for job, index in on.get((node.hostname, gpu.uuid), ())]
        gpus.append(GpuLine(gpu.gpu, gpu.total_bytes, gpu.used_bytes, sum(held), gpu.other_processes_bytes, len(held)))
    return NodeLine(
        node.node_id, node.hostname, node.health, node.last_report_age_s, node.ranks, tuple(gpus),
        tuple(jobs[:MAX_NAMED_JOBS]), max(len(jobs) - MAX_NAMED_JOBS, 0),
    )  # fmt: skip


class JobLines:
    """A cache of ``job_line``, made again only for a job with news. Not thread-safe."""

    def __init__(self, memory_line: MemoryLine) -> None:
        self._memory_line = memory_line
        self._made: dict[JobKey, tuple[JobView, JobLine, Wire]] = {}

    def line(self, job: JobView) -> JobLine:
        return self._line(job)[1]

    def wire(self, job: JobView) -> Wire:
        return self._line(job)[2]

    def keep_only(self, jobs: Sequence[JobView]) -> None:
        self._made = {job.key: self._made[job.key] for job in jobs if job.key in self._made}

    def _line(self, job: JobView) -> tuple[JobView, JobLine, Wire]:
        made = self._made.get(job.key)
        if made is None or made[0] is not job:
            line = job_line(job, self._memory_line)
            made = self._made[job.key] = job, line, to_wire(line)
        return made


def job_line(job: JobView, memory_line: MemoryLine) -> JobLine:
    """The line of ``job``, which has a rank."""
    first = min(range(len(job.ranks)), key=lambda place: look_first(job.ranks[place]))
    used = [rank.used_bytes for rank in job.ranks]
    shares = [held / rank.limit_bytes for held, rank in zip(used, job.ranks) if rank.limit_bytes]
    return JobLine(
        job_id=job.job_id,
        attempt=job.attempt,
        uid=job.ranks[0].uid,
        job_name=job.job_name,
        user_name=job.user_name,
        scheduler=job.scheduler,
        nodes=len(job.hostnames),
        world_size=job.world_size,
        alive=sum(rank.alive for rank in job.ranks),
        stale=len(job.stale),
        step=max(rank.step for rank in job.ranks),
        state=job.state,
        severity=job.severity,
        signal=job.signal,
        common=job.common,
        suspects=len(job.suspects),
        running=job.running,
        exempt=job.exempt,
        used_bytes=max(used),
        used_share=max(shares, default=None),
        first=_rank_line(job, first, job.stale, memory_line),
        array=job_array_name(job),
        group=job.group,
        group_name=job.group_name,
        replicas=job.replicas,
    )


def _rank_line(job: JobView, place: int, stale: Collection[int], memory_line: MemoryLine) -> RankLine:
    rank, verdict = job.ranks[place], job.ranks[place].verdict
    return RankLine(
        rank=int(rank.identity.rank),
        hostname=job.rank_hostnames[place],
        gpu=rank.gpu,
        pid=rank.process.pid,
        step=rank.step,
        allocated_bytes=rank.allocated_bytes,
        reserved_bytes=rank.reserved_bytes,
        nontorch_bytes=rank.nontorch_bytes,
        limit_bytes=rank.limit_bytes,
        host_rss_bytes=rank.host_rss_bytes,
        state=verdict.state,
        severity=verdict.severity,
        signal=verdict.signal,
        cause=verdict.cause,
        onset_step=verdict.onset_step,
        bytes_per_step=verdict.bytes_per_step,
        seconds_to_oom=verdict.seconds_to_oom,
        steps_to_oom=verdict.steps_to_oom,
        alive=rank.alive,
        stale=int(rank.identity.rank) in stale,
        cap_fraction=rank.cap_fraction,
        oom_at_unix_s=None if rank.last_oom is None else rank.last_oom.at_unix_s,
        line=memory_line(job.rank_nodes[place], rank),
        slurm_step=None if rank.slurm is None else rank.slurm.step_id,
        pod=None if rank.pod is None else rank.pod.full_name or rank.pod.pod_uid,
        container=None if rank.pod is None else rank.pod.container,
        host_processes=rank.host_processes,
        bound=rank.bound,
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    """The sum; ``None`` if any amount is unknown, or there is none."""
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None
