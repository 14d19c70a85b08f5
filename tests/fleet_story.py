"""What happens in a made-up fleet: for any moment the product's own values of every node and job, without a clock.

Jobs are numbered from 0 and fill the GPUs of nodes with eight each, in order. Of every 40 jobs the first six have
something of their own (``Plot``); the last node stops answering before the end, and one more node has no rank but a
stranger on its GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Final, NamedTuple

from tidegauge.core.host_memory import NodeMemory
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.profile.categories import Category
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, JobView, NodeView, RankView

CLUSTER: Final = "lab"
GPUS_PER_NODE: Final = 8
GIB: Final = 1024**3
LIMIT_BYTES: Final = 80 * GIB
NONTORCH_BYTES: Final = 2 * GIB
STEPS_PER_S: Final = 2.0
LINGER_S: Final = 120.0
PLOT_EVERY: Final = 40

SUSPECTED_AT: Final = 0.30
ESTABLISHED_AT: Final = 0.35
GROWS_FROM: Final = 0.25
OOM_AT: Final = 0.60
ENDS_AT: Final = 0.50
STALE_FROM: Final = 0.80
"""Shares of the whole history."""


def _composition(peak_bytes: int) -> Mapping[Category, int]:
    """What a transformer's memory is made of at its peak, as far as it has grown."""
    model = {
        Category.PARAMETERS: 2 * GIB, Category.GRADIENTS: 2 * GIB, Category.OPTIMIZER_STATE: 4 * GIB,
        Category.TEMPORARIES: GIB, Category.COMMUNICATION: GIB // 2,
    }  # fmt: skip
    return {**model, Category.ACTIVATIONS: max(peak_bytes - sum(model.values()), 0)}


class Plot(Enum):
    """What happens to a job; the value is its place among 40 jobs."""

    LEAK = 0
    """Rank 1 (rank 0 of a job with one) keeps tensors and is nearly full at the end."""
    OUT_OF_MEMORY = 1
    """Attempt 0 runs out of memory on rank 0 and ends; attempt 1 starts three minutes later."""
    FRAGMENTATION = 2
    """On every rank reserved grows away from allocated, and device allocations have to be repeated."""
    OUTSIDE_ALLOCATOR = 3
    """On every rank memory outside the allocator grows, by the same."""
    ENDS = 4
    """It is done in the middle of the history."""
    TWO_GROUPS = 5
    """Two launches side by side: each has half of the job's GPUs, and numbers its ranks from 0."""
    STEADY = 6


class Moment(NamedTuple):
    """A point in time of the history."""

    unix_s: float
    share: float
    """Of the history that is over: 0 to 1."""


class _Memory(NamedTuple):
    allocated_bytes: int
    reserved_bytes: int
    inactive_split_bytes: int
    nontorch_bytes: int
    verdict: Verdict
    alloc_retries: int = 0
    ooms: int = 0


@dataclass(frozen=True)
class Fleet:
    """Who is there, and from when to when."""

    jobs: int
    ranks_per_job: int
    began_unix_s: float
    ends_unix_s: float
    seed: int = 0
    """Shifts the jobs' sizes and the waves of their memory."""

    @property
    def duration_s(self) -> float:
        return self.ends_unix_s - self.began_unix_s

    @cached_property
    def nodes(self) -> int:
        """Nodes that have a rank; the node after the last of them has none."""
        return math.ceil(self.jobs * self.ranks_per_job / GPUS_PER_NODE)

    def moment(self, unix_s: float) -> Moment:
        return Moment(unix_s, (unix_s - self.began_unix_s) / self.duration_s)

    def stale(self, node: int, moment: Moment) -> bool:
        """Whether the node does not answer: the last one with ranks, where there are several."""
        return moment.share >= STALE_FROM and node == self.nodes - 1 > 0

    def node_views(self, moment: Moment) -> Iterator[NodeView]:
        """Every node, also the stale one: what it would say if it answered."""
        for node in range(self.nodes + 1):
            slots = range(node * GPUS_PER_NODE, (node + 1) * GPUS_PER_NODE)
            ranks = [rank for slot in slots if (rank := self._rank(slot, moment)) is not None]
            yield NodeView(
                hostname=hostname(node),
                cluster=CLUSTER,
                now_unix_s=moment.unix_s,
                ranks=tuple(ranks),
                gpus=tuple(_gpu(slot, ranks, stranger=node == self.nodes) for slot in slots),
                memory=_host_memory(ranks),
                collect_success={"rings": True, "nvml": True, "proc": True},
                collect_duration_s={"rings": 0.0004, "nvml": 0.0021, "proc": 0.0007},
            )

    def job_views(self, nodes: Sequence[NodeView], moment: Moment) -> list[JobView]:
        """The coordinator's jobs when the nodes say this; ``nodes`` are all of ``node_views``."""
        found: dict[tuple[str, int, str], list[tuple[str, RankView]]] = {}
        stale = {node.hostname for index, node in enumerate(nodes) if self.stale(index, moment)}
        for node in nodes:
            for rank in node.ranks:
                group = (rank.identity.job_id, rank.identity.attempt, rank.group)
                found.setdefault(group, []).append((node.hostname, rank))
        return [_job(ranks, stale) for ranks in found.values()]

    def _rank(self, slot: int, moment: Moment) -> RankView | None:
        job, rank = divmod(slot, self.ranks_per_job)
        if job >= self.jobs:
            return None
        plot = plot_of(job)
        began_unix_s, ended_unix_s, attempt = self._attempt(plot, moment)
        if moment.unix_s < began_unix_s or (ended_unix_s is not None and moment.unix_s > ended_unix_s + LINGER_S):
            return None
        last_unix_s = moment.unix_s - 0.5 if ended_unix_s is None else min(moment.unix_s, ended_unix_s)
        memory = self._memory(job, rank, plot, attempt, moment)
        steps = max(int((last_unix_s - began_unix_s) * STEPS_PER_S), 0)
        group, world_size = "", self.ranks_per_job
        if plot is Plot.TWO_GROUPS and self.ranks_per_job > 1:
            world_size = self.ranks_per_job // 2
            group, rank = f"step {rank // world_size}", rank % world_size
        return RankView(
            identity=RankIdentity(
                job_id=JobId(job_id(job)),
                attempt=attempt,
                rank=GlobalRank(rank),
                local_rank=LocalRank(slot % GPUS_PER_NODE),
                world_size=world_size,
                hostname=hostname(slot // GPUS_PER_NODE),
                job_name=f"pretrain-{job % 7}",
                scheduler="slurm",
                torch_version="2.11.0",
                alloc_conf="expandable_segments:True" if attempt else "",
            ),
            process=ProcessId(1000 + slot, 5_000 + attempt),
            uid=1001 + job % 5,
            user_name=user_name(job),
            group=group,
            uuid=uuid_of(slot),
            gpu=slot % GPUS_PER_NODE,
            last_sample_unix_s=last_unix_s,
            step=steps,
            allocated_bytes=memory.allocated_bytes,
            reserved_bytes=memory.reserved_bytes,
            active_bytes=memory.allocated_bytes + 2**20,
            inactive_split_bytes=memory.inactive_split_bytes,
            requested_bytes=memory.allocated_bytes - memory.allocated_bytes // 50,
            allocated_peak_bytes=memory.allocated_bytes + 4 * GIB,
            reserved_peak_bytes=memory.reserved_bytes,
            nontorch_bytes=memory.nontorch_bytes,
            limit_bytes=LIMIT_BYTES,
            host_rss_bytes=6 * GIB + rank * 2**20,
            alloc_retries=memory.alloc_retries,
            ooms=memory.ooms,
            steps=steps,
            profile_bytes=_composition(memory.allocated_bytes + 4 * GIB),
            verdict=memory.verdict,
            alive=ended_unix_s is None or moment.unix_s <= ended_unix_s,
        )

    def _attempt(self, plot: Plot, moment: Moment) -> tuple[float, float | None, int]:
        """The attempt that is to be seen: when it began and ended (``None``: it has not), and its number."""
        if plot is Plot.ENDS:
            ended_unix_s = self.began_unix_s + ENDS_AT * self.duration_s
            return self.began_unix_s, None if moment.unix_s <= ended_unix_s else ended_unix_s, 0
        oom_unix_s = self.began_unix_s + OOM_AT * self.duration_s
        if plot is not Plot.OUT_OF_MEMORY or moment.unix_s < oom_unix_s:
            return self.began_unix_s, None, 0
        if moment.unix_s <= oom_unix_s + LINGER_S:
            return self.began_unix_s, oom_unix_s - 1, 0
        return oom_unix_s + LINGER_S + 60, None, 1

    def _memory(self, job: int, rank: int, plot: Plot, attempt: int, moment: Moment) -> _Memory:
        base = (30 + (job * 7 + self.seed) % 20) * GIB
        wave = int(GIB * math.sin(moment.unix_s / 97 + job + rank / 3 + self.seed))
        steady = _Memory(base + wave, base + 8 * GIB, GIB // 2, NONTORCH_BYTES, OK)
        room = 0.93 * LIMIT_BYTES - steady.reserved_bytes - NONTORCH_BYTES
        grown = int(max(moment.share - GROWS_FROM, 0) / (1 - GROWS_FROM) * room)
        if plot is Plot.LEAK and rank == min(1, self.ranks_per_job - 1):
            return steady._replace(
                allocated_bytes=steady.allocated_bytes + grown,
                reserved_bytes=steady.reserved_bytes + grown,
                verdict=self._verdict(Signal.ALLOCATED, "tensors_kept", room, grown, moment),
            )
        if plot is Plot.FRAGMENTATION:
            return steady._replace(
                reserved_bytes=steady.reserved_bytes + grown,
                inactive_split_bytes=steady.inactive_split_bytes + grown,
                verdict=self._verdict(Signal.RESERVED, "reserved_growth", room, grown, moment),
                alloc_retries=int(max(moment.share - 0.6, 0) * 100),
            )
        if plot is Plot.OUTSIDE_ALLOCATOR:
            return steady._replace(
                nontorch_bytes=NONTORCH_BYTES + grown,
                verdict=self._verdict(Signal.NONTORCH, "outside_allocator", room, grown, moment),
            )
        if plot is Plot.OUT_OF_MEMORY and not attempt and moment.share >= OOM_AT:
            full = LIMIT_BYTES - NONTORCH_BYTES
            return steady._replace(allocated_bytes=full - GIB, reserved_bytes=full, ooms=int(rank == 0))
        return steady

    def _verdict(self, signal: Signal, cause: str, room: float, grown: int, moment: Moment) -> Verdict:
        if moment.share < SUSPECTED_AT:
            return OK
        per_s = room / ((1 - GROWS_FROM) * self.duration_s)
        left_s = (room + 0.07 * LIMIT_BYTES - grown) / per_s
        return Verdict(
            state=LeakState.SUSPECTED if moment.share < ESTABLISHED_AT else LeakState.LEAK,
            severity=Severity.WARNING if moment.share < STALE_FROM else Severity.CRITICAL,
            signal=signal,
            cause=cause,
            grown_bytes=grown,
            bytes_per_step=_band(per_s / STEPS_PER_S),
            bytes_per_second=_band(per_s),
            seconds_to_oom=_band(left_s),
            headroom_eaten=grown / (room + 0.07 * LIMIT_BYTES),
        )


def plot_of(job: int) -> Plot:
    """What happens to the job with this number."""
    return Plot(min(job % PLOT_EVERY, Plot.STEADY.value))


def job_id(job: int) -> str:
    return str(4700 + job)


def hostname(node: int) -> str:
    return f"node{node:04d}"


def user_name(job: int) -> str:
    return ("ada", "grace", "alan", "edsger", "barbara")[job % 5]


def uuid_of(slot: int) -> DeviceUuid:
    """Of the GPU at this place of the fleet, nodes one after the other."""
    return DeviceUuid(f"GPU-{slot:08x}-1111-2222-3333-444444444444")


def _band(likely: float) -> Band:
    return Band(0.9 * likely, likely, 1.2 * likely)


def _host_memory(ranks: Sequence[RankView]) -> NodeMemory:
    """Of a node of 2 TiB, half of which ``/dev/shm`` may take; each rank has 2 GiB there."""
    held = sum(rank.host_rss_bytes or 0 for rank in ranks if rank.alive)
    return NodeMemory(2048 * GIB, 1980 * GIB - held, 1024 * GIB, len(ranks) * 2 * GIB)


def _gpu(slot: int, ranks: Sequence[RankView], *, stranger: bool) -> GpuView:
    uuid = uuid_of(slot)
    watched = sum(
        rank.reserved_bytes + (rank.nontorch_bytes or 0) for rank in ranks if rank.alive and rank.uuid == uuid
    )
    other = 12 * GIB if stranger and slot % GPUS_PER_NODE == 0 else 0
    return GpuView(
        uuid=uuid,
        gpu=slot % GPUS_PER_NODE,
        name="NVIDIA H100",
        total_bytes=LIMIT_BYTES,
        used_bytes=watched + other + GIB // 2,
        other_processes_bytes=other,
        unheld_bytes=GIB // 2,
    )


def _job(ranks: Sequence[tuple[str, RankView]], stale_hosts: set[str]) -> JobView:
    first = ranks[0][1]
    worst = max((rank.verdict for _, rank in ranks), key=lambda verdict: verdict.state.level)
    return JobView(
        job_id=first.identity.job_id,
        attempt=first.identity.attempt,
        job_name=first.identity.job_name,
        user_name=first.user_name,
        scheduler=first.identity.scheduler,
        world_size=first.identity.world_size,
        hostnames=tuple(sorted({host for host, _ in ranks})),
        ranks=tuple(rank.summary() for _, rank in ranks),
        state=worst.state,
        severity=worst.severity,
        signal=worst.signal,
        suspects=tuple(rank.identity.rank for _, rank in ranks if rank.verdict.state is not LeakState.OK),
        running=any(rank.alive for _, rank in ranks),
        stale=tuple(rank.identity.rank for host, rank in ranks if host in stale_hosts),
        group="" if first.group == "step 0" else first.group,
        group_name=first.group,
    )
