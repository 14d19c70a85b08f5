"""A fleet as its agents tell of it: ``NodeSummary``s of simulated nodes, second by second, without the nodes.

What is simulated: nodes of eight GPUs and ranks (or fewer), jobs of one to eight nodes, 100 users. Memory moves a
little at every report, steps go on. Incidents begin evenly, so many a minute: a rank of a job that has none is
suspected, leaks twenty seconds later, and after one to three minutes the growth ends, the job starts anew, or the rank
runs out of memory and the job starts anew. An order to a rank is answered with the next report, and evidence that was
asked for comes 45 s later. Sizes, fields and what changes when are those of real agents.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tidegauge.core.evidence import CauseFound, Evidence, SnapshotRef, StackGrowth
from tidegauge.core.evidence.brief import Confidence, EvidenceCause
from tidegauge.core.evidence.owners import CodeLine
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, JobKey, LocalRank, ProcessId, RankIdentity
from tidegauge.core.jobs.launches import LaunchState, LaunchSummary
from tidegauge.core.orders import Order, OrderResult
from tidegauge.core.samples import OomRecord
from tidegauge.core.verdicts import OK, Band, LeakState, Severity, Signal, Verdict
from tidegauge.core.views import GpuView, NodeSummary, RankSummary

GIB, MIB = 1 << 30, 1 << 20
JOB_NODES = (1, 1, 1, 2, 2, 4, 6, 8)
"""Nodes of one job after the other: 3.1 on average, 400 jobs on 1,250 nodes."""
USERS = 100
SUSPECTED_S, MIN_LEAK_S, MAX_LEAK_S = 20.0, 60.0, 180.0
REST_S = 180.0
"""After the end of one episode, before the same job has the next: incidents need two minutes to close."""
EVIDENCE_TAKES_S = 45.0
SIGNALS = (Signal.ALLOCATED, Signal.ALLOCATED, Signal.ALLOCATED, Signal.RESERVED, Signal.NONTORCH, Signal.HOST)
LINE = CodeLine("/home/user/train.py", 41, "step")


@dataclass
class Episode:
    """One rank that grows, from the first suspicion to its end."""

    rank: int
    signal: Signal
    severity: Severity
    began_s: float
    ends_s: float
    ending: str
    """``quiet``, ``restart`` or ``oom``."""

    def verdict(self, now_s: float, step: int) -> Verdict:
        leaks = now_s - self.began_s >= SUSPECTED_S
        left_s = 3600.0 + 10 * (self.ends_s - now_s)
        grown_bytes = int(20 * MIB * (now_s - self.began_s + 10))
        return Verdict(
            LeakState.LEAK if leaks else LeakState.SUSPECTED, self.severity, self.signal, "tensors_kept",
            onset_step=step // 2, suspect_step=step // 2 + 40, alarm_step=step if leaks else None,
            bytes_per_step=Band(9.5 * MIB, 10.0 * MIB, 10.5 * MIB),
            bytes_per_second=Band(19.0 * MIB, 20.0 * MIB, 21.0 * MIB), grown_bytes=grown_bytes,
            steps_to_oom=Band(1.8 * left_s, 2 * left_s, 2.4 * left_s),
            seconds_to_oom=Band(0.9 * left_s, left_s, 1.2 * left_s),
        )  # fmt: skip


@dataclass
class SimulatedJob:
    """A job and what goes on in it."""

    number: int
    nodes: range
    ranks_per_node: int
    began_s: float
    attempt: int = 0
    episode: Episode | None = None
    rest_until_s: float = 0.0
    identities: list[RankIdentity] = field(default_factory=list)

    @property
    def uid(self) -> int:
        return 2000 + self.number % USERS

    @property
    def job_id(self) -> str:
        return f"run-{10_000 + self.number}"

    @property
    def key(self) -> JobKey:
        return JobKey(self.job_id, self.attempt, self.uid)

    @property
    def world_size(self) -> int:
        return len(self.nodes) * self.ranks_per_node

    def start(self, now_s: float) -> None:
        """A new attempt."""
        self.began_s, self.episode = now_s, None
        self.identities = [
            RankIdentity(
                JobId(self.job_id), self.attempt, GlobalRank(rank), LocalRank(rank % self.ranks_per_node),
                self.world_size, hostname(self.nodes[rank // self.ranks_per_node]), f"pretrain-{self.number % 7}",
                scheduler=None, profile="auto", torch_version="2.13.0",
                device_uuids=tuple(uuid_of(self.nodes[0], gpu) for gpu in range(self.ranks_per_node)),
                alloc_conf="expandable_segments:True", checkpoint="callback",
            )
            for rank in range(self.world_size)
        ]  # fmt: skip

    def pid(self, rank: int) -> ProcessId:
        return ProcessId(40_000 + 100 * (self.attempt % 100) + rank, 1_000_000 + self.attempt)


def hostname(node: int) -> str:
    return f"gpu-node-{node:05}"


def node_id(node: int) -> str:
    """As long as Ray's."""
    return f"{node:056x}"


def uuid_of(node: int, gpu: int) -> DeviceUuid:
    return DeviceUuid(f"GPU-{node:08x}-{gpu:04x}-4c1e-9d3f-2f1c8a7b6e5d")


@dataclass
class _Agent:
    """What one simulated agent has to say beside its ranks."""

    results: dict[str, OrderResult] = field(default_factory=dict)
    evidence: list[Evidence] = field(default_factory=list)
    to_come: list[Evidence] = field(default_factory=list)
    done: set[str] = field(default_factory=set)


class Fleet:
    """Nodes ``first`` to ``first + nodes - 1`` and their jobs. ``advance`` lets time pass, ``summary`` is a report.

    All times are unix seconds on the caller's clock, simulated or not.
    """

    def __init__(
        self, nodes: int, *, ranks_per_node: int = 8, incidents_per_minute: float, now_s: float, first: int = 0
    ) -> None:
        self.nodes = range(first, first + nodes)
        self.ranks = nodes * ranks_per_node
        self._random = random.Random(first)
        self._gap_s = 60.0 / incidents_per_minute if incidents_per_minute else float("inf")
        self._next_s = now_s + self._gap_s
        self._ranks_per_node = ranks_per_node
        self._agents = {node: _Agent() for node in self.nodes}
        self.jobs = list(self._jobs(now_s))
        self._job_on = {node: job for job in self.jobs for node in job.nodes}
        self.begun = self.ended = 0

    def advance(self, now_s: float) -> set[int]:
        """What happens until now; returns the nodes that have news, which their agents report at once."""
        news: set[int] = set()
        while self._next_s <= now_s:
            self._next_s += self._gap_s
            news |= self._begin_episode(now_s)
        for job in self.jobs:
            if job.episode is not None:
                news |= self._go_on(job, job.episode, now_s)
        for node, agent in self._agents.items():
            ready = [piece for piece in agent.to_come if piece.at_unix_s <= now_s]
            if ready:
                agent.evidence += ready
                agent.to_come = [piece for piece in agent.to_come if piece.at_unix_s > now_s]
                news.add(node)
        return news

    def summary(self, node: int, now_s: float) -> NodeSummary:
        """What the node's agent reports now."""
        job, agent = self._job_on[node], self._agents[node]
        launch = _launch(job, node)
        local = range((node - job.nodes[0]) * self._ranks_per_node, (node - job.nodes[0] + 1) * self._ranks_per_node)
        ranks = tuple(self._rank(job, rank, node, launch, now_s) for rank in local)
        gpus = tuple(
            GpuView(uuid_of(node, gpu), gpu, "NVIDIA H200", 141 * GIB, rank.reserved_bytes + 3 * GIB, 0, 140 * GIB)
            for gpu, rank in enumerate(ranks)
        )
        return NodeSummary(
            node_id(node), hostname(node), 4000 + node, "1", f"10.0.{node >> 8}.{node & 255}:9494", now_s, ranks, gpus,
            (launch,), tuple(agent.results.values()), settings_digest="0" * 16, slurm_node=False,
            evidence=tuple(agent.evidence),
        )  # fmt: skip

    def take(self, node: int, orders: Iterable[Order], kept: Iterable[str], now_s: float) -> bool:
        """What a reply asks of the node; whether there are results to report at once."""
        agent, wanted = self._agents[node], {order.order_id: order for order in orders}
        agent.results = {name: result for name, result in agent.results.items() if name in wanted}
        gone = set(kept)
        agent.evidence = [piece for piece in agent.evidence if piece.evidence_id not in gone]
        new = [order for name, order in wanted.items() if name not in agent.results and name not in agent.done]
        for order in new:
            agent.results[order.order_id] = OrderResult(order.order_id, reply={"ok": True, "step": 1})
            agent.done.add(order.order_id)
            if order.request.get("command") == "evidence":
                agent.to_come.append(self._evidence(node, order, now_s))
        if not wanted:
            agent.done.clear()
        return bool(new)

    def _jobs(self, now_s: float) -> Iterator[SimulatedJob]:
        at, number = self.nodes.start, self.nodes.start
        while at < self.nodes.stop:
            size = min(JOB_NODES[number % len(JOB_NODES)], self.nodes.stop - at)
            job = SimulatedJob(at, range(at, at + size), self._ranks_per_node, now_s)
            job.start(now_s - 3600.0)
            yield job
            at, number = at + size, number + 1

    def _begin_episode(self, now_s: float) -> set[int]:
        idle = [job for job in self.jobs if job.episode is None and job.rest_until_s <= now_s]
        if not idle:
            return set()
        job, chance = self._random.choice(idle), self._random
        rank, ending = chance.randrange(job.world_size), chance.choice(("quiet", "quiet", "quiet", "restart", "oom"))
        lasting_s = SUSPECTED_S + chance.uniform(MIN_LEAK_S, MAX_LEAK_S)
        severity = chance.choice((Severity.WARNING, Severity.CRITICAL))
        job.episode = Episode(rank, chance.choice(SIGNALS), severity, now_s, now_s + lasting_s, ending)
        self.begun += 1
        return {job.nodes[rank // self._ranks_per_node]}

    def _go_on(self, job: SimulatedJob, episode: Episode, now_s: float) -> set[int]:
        where = {job.nodes[episode.rank // self._ranks_per_node]}
        if now_s < episode.ends_s:
            return where if 0 <= now_s - episode.began_s - SUSPECTED_S < 1.0 else set()
        if episode.ending == "oom" and now_s < episode.ends_s + 5.0:
            return where  # its last words are shown for a moment, then the job starts anew
        self.ended += 1
        job.episode, job.rest_until_s = None, now_s + REST_S
        if episode.ending == "quiet":
            return where
        job.attempt += 1
        job.start(now_s)
        return set(job.nodes)

    def _rank(self, job: SimulatedJob, rank: int, node: int, launch: LaunchSummary, now_s: float) -> RankSummary:
        step, verdict, oom = int(2 * (now_s - job.began_s)), OK, None
        allocated = 50 * GIB + ((step * 7919 + rank * 104_729) & 0x3FFFFFFF)
        if job.episode is not None and job.episode.rank == rank:
            verdict = job.episode.verdict(now_s, step)
            allocated += verdict.grown_bytes or 0
            if job.episode.ending == "oom" and now_s >= job.episode.ends_s:
                oom = OomRecord(job.episode.ends_s, step, 2 * GIB, GIB, 140 * GIB, allocated, 139 * GIB)
        gpu = rank % self._ranks_per_node
        return RankSummary(
            job.identities[rank], job.pid(rank), job.uid, f"user{job.uid}", gpu, uuid_of(node, gpu), step, allocated,
            allocated + 5 * GIB, 3 * GIB + (step & 0xFFFFF), 140 * GIB, 20 * GIB + 4096 * (step & 0xFFF), now_s - 0.3,
            verdict, alive=oom is None, last_oom=oom, launch=launch.process,
        )  # fmt: skip

    def _evidence(self, node: int, order: Order, now_s: float) -> Evidence:
        job = self._job_on[node]
        rank = next((rank for rank in range(job.world_size) if job.pid(rank) == order.process), 0)
        stack = tuple(LINE._replace(line=LINE.line + depth) for depth in range(12))
        growth = tuple(StackGrowth(300 * MIB - place, 30, stack, LINE, 10 * MIB) for place in range(10))
        refs = tuple(
            SnapshotRef(f"bench/{job.job_id}/{job.attempt}/rank-{rank}/step-{step}.snap.zst", hostname(node), step,
                        now_s, 600_000)
            for step in (200, 230)
        )  # fmt: skip
        return Evidence(
            str(order.request.get("id", order.order_id)), job.key, rank, hostname(node), order.process, "suspected",
            began_step=200, at_unix_s=now_s + EVIDENCE_TAKES_S, early_step=204, late_step=234, grown_bytes=360 * MIB,
            growth=growth, live=growth,
            cause=CauseFound(EvidenceCause.PYTHON_CONTAINER, Confidence.LIKELY, ("a list holds it",), "append item()"),
            snapshots=refs, longest_stall_s=0.02,
        )  # fmt: skip


def _launch(job: SimulatedJob, node: int) -> LaunchSummary:
    return LaunchSummary(
        ProcessId(900, 1_000 + node), job.uid, job.job_id, f"pretrain-{job.number % 7}", restarts=job.attempt,
        state=LaunchState.RUNNING, requeueable=True, exempt=False, gpu_share=None, started_unix_s=job.began_s,
    )  # fmt: skip


def shards(nodes: int, parts: int) -> list[range]:
    """Nodes for several generators, in whole rounds of ``JOB_NODES`` so that no job is cut in two."""
    whole = sum(JOB_NODES)
    rounds = -(-nodes // whole)
    ends = [min(nodes, whole * -(-rounds * part // parts)) for part in range(parts + 1)]
    return [range(begin, end) for begin, end in zip(ends, ends[1:]) if end > begin]
