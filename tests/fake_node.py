"""A node made of real ring files and fakes of the agent's ports: GPUs that play back a series, processes, time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidegauge.agent.agent_state import AgentState
from tidegauge.agent.container_run_dirs.discovery import Containers
from tidegauge.agent.evidence.collector import open_evidence_collector
from tidegauge.agent.evidence.node_profiles import NodeProfiles
from tidegauge.agent.kubernetes.pods import PodBook
from tidegauge.agent.node_agent import NodeAgent
from tidegauge.agent.opening.local import LOCAL
from tidegauge.agent.opening.port import Opener
from tidegauge.agent.ports import (
    Detector,
    GpuReading,
    GpuUnavailableError,
    HeldBy,
    NoPlace,
    ProcessFacts,
    ProcessUsage,
    SourceHealth,
)
from tidegauge.agent.ranks.watches import WALL_SHARE
from tidegauge.agent.tenant_time import TenantTime
from tidegauge.core.host_memory import HostMemory, NodeMemory
from tidegauge.core.ids import DeviceUuid, GlobalRank, JobId, LocalRank, ProcessId, RankIdentity
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.jobs.slurm import SlurmJobRecord, SlurmPlace
from tidegauge.core.ring_layout import IDENTITY_OFFSET, RingHeader, encode_header, encode_identity, encode_record
from tidegauge.core.run_dirs import ring_name
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.settings import Settings

MIB = 1 << 20
GIB = 1 << 30
STEP_S = 0.0625
"""Slow enough that a reader takes every record; exact in binary."""
PID = ProcessId(4242, 777)
UUID0 = DeviceUuid("GPU-00000000-0000-0000-0000-000000000000")
UUID1 = DeviceUuid("GPU-11111111-1111-1111-1111-111111111111")


_agents: list[NodeAgent] = []
"""Of all nodes since ``close_agents``."""


def close_agents() -> None:
    """Close the agents of all nodes that were made, and their files (``tests/conftest.py``, after each test)."""
    while _agents:
        _agents.pop().close()


@dataclass
class FakeClock:
    """Time that passes when it is told to."""

    now_s: float = 1000.0
    unix_offset_s: float = 1.7e9

    def unix_s(self) -> float:
        return self.now_s + self.unix_offset_s

    def monotonic_s(self) -> float:
        return self.now_s

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds


def gpu_reading(
    uuid: DeviceUuid = UUID0,
    gpu: int = 0,
    *,
    total_bytes: int | None = 80 * GIB,
    free_bytes: int | None = 60 * GIB,
    processes: Mapping[int, int | None] | None = None,
) -> GpuReading:
    used = None if total_bytes is None or free_bytes is None else total_bytes - free_bytes
    return GpuReading(uuid, gpu, "Fake H200", total_bytes, used, free_bytes, {} if processes is None else processes)


@dataclass
class FakeGpus:
    """Says what it is told to; ``failing`` makes it raise."""

    readings: tuple[GpuReading, ...] = ()
    failing: bool = False
    closed: bool = False

    def read(self) -> tuple[GpuReading, ...]:
        if self.failing:
            raise GpuUnavailableError("the driver is being reloaded")
        return self.readings

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeProcs:
    """Processes by the id they go by; take one out and it has ended."""

    facts: dict[ProcessId, ProcessFacts] = field(default_factory=dict)
    rss_bytes: int | None = 2 * GIB
    failing: bool = False
    searches: int = 0
    parents: dict[ProcessId, tuple[ProcessId, ...]] = field(default_factory=dict)
    """Who each descends from, the nearest first."""
    walks: int = 0
    """How often that was asked."""
    others: set[ProcessId] = field(default_factory=set)
    """Living processes that write no ring."""
    data_workers: set[ProcessId] = field(default_factory=set)
    """Those among them that look like a DataLoader's."""
    slips_on: set[ProcessId] = field(default_factory=set)
    """Those that a slip of ours lets nobody find."""

    def find(self, process: ProcessId, *, mount_namespaces: Collection[int] | None = None) -> ProcessFacts | None:
        self.searches += 1
        if process in self.slips_on:
            raise ZeroDivisionError("a slip in the source")
        return self.facts.get(process)

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        if self.failing:
            raise OSError(24, "Too many open files")
        alive = any(facts.process == process for facts in self.facts.values())
        return ProcessUsage(self.rss_bytes) if alive else None

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        self.walks += 1
        return self.parents.get(process, ())

    def process_at(self, pid: int) -> ProcessId | None:
        watched = (facts.process for facts in self.facts.values())
        return next((process for process in (*watched, *self.others) if process.pid == pid), None)

    def is_gone(self, pid: int) -> bool:
        if self.failing:
            raise OSError(24, "Too many open files")
        return self.process_at(pid) is None

    def looks_like_data_worker(self, process: ProcessId) -> bool:
        return process in self.data_workers

    def user_name(self, uid: int) -> str:
        return f"user{uid}"


@dataclass
class FakeSteps:
    """A slurmd that says what it is told to; a process it was told nothing of is ``unless``."""

    words: dict[ProcessId, SlurmPlace | NoPlace] = field(default_factory=dict)
    unless: NoPlace = NoPlace.NOT_ASKED
    how: SourceHealth | None = None
    is_node: bool = True
    closed: bool = False

    def place_of(self, process: ProcessId) -> SlurmPlace | NoPlace:
        return self.words.get(process, self.unless)

    def pids(self) -> frozenset[int] | None:
        return frozenset(process.pid for process in self.words) if self.is_node else None

    def health(self) -> SourceHealth | None:
        return self.how

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeRecords:
    """What a prolog left."""

    records: dict[str, SlurmJobRecord] = field(default_factory=dict)

    def record_of(self, job_id: JobId) -> SlurmJobRecord | None:
        return self.records.get(job_id)


@dataclass
class FakeHolders:
    """A kubelet that says what it is told to."""

    holders: dict[DeviceUuid, frozenset[HeldBy]] = field(default_factory=dict)
    how: SourceHealth | None = None
    closed: bool = False

    def holders_of(self, uuids: Collection[DeviceUuid]) -> frozenset[HeldBy]:
        return frozenset.intersection(*(self.holders.get(uuid, frozenset()) for uuid in uuids))

    def health(self) -> SourceHealth | None:
        return self.how

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeHostMemory:
    """Trees as they are told; of a rank without one nothing is known."""

    trees: dict[ProcessId, HostMemory] = field(default_factory=dict)
    memory: NodeMemory | None = None
    watched: frozenset[ProcessId] = frozenset()
    closed: bool = False

    def watch(self, ranks: Collection[ProcessId]) -> None:
        self.watched = frozenset(ranks)

    def of(self, rank: ProcessId, own_bytes: int | None) -> HostMemory | None:
        return self.trees.get(rank)

    def node(self) -> NodeMemory | None:
        return self.memory

    def health(self) -> SourceHealth | None:
        return None

    def close(self) -> None:
        self.closed = True


class ScriptedDetector:
    """Remembers what it was fed and says what the test wants."""

    def __init__(self) -> None:
        self.fed: list[dict[str, int | float | None]] = []
        self.verdict: Verdict = OK
        self.fails = False

    def update(self, **readings: int | float | None) -> Verdict:
        if self.fails:
            raise ZeroDivisionError("a slip in the detector")
        self.fed.append(readings)
        return self.verdict

    def state_dict(self) -> Mapping[str, Any]:
        return {"fed": self.fed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.fed = list(state["fed"])


def identity(**changes: object) -> RankIdentity:
    base = RankIdentity(JobId("job-1"), 0, GlobalRank(0), LocalRank(0), 2, "claimed-host", device_uuids=(UUID0,))
    return base._replace(**changes)  # type: ignore[arg-type] # SAFETY: tests name real fields


class FakeRank:
    """A process that writes a real ring file, as the probe does."""

    def __init__(
        self,
        run_dir: Path,
        clock: FakeClock,
        *,
        process: ProcessId = PID,
        uid: int | None = None,
        capacity: int = 64,
        devices: int = 1,
        who: RankIdentity | None = None,
        created_ns: int = 1,
    ) -> None:
        self.uid = os.getuid() if uid is None else uid
        self.process = process
        self.clock = clock
        self.header = RingHeader(capacity, devices, process.pid, process.start_ticks, created_ns)
        self.path = run_dir / str(self.uid) / ring_name(process)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.seq = [0] * devices
        self._generation = 0
        with self.path.open("wb") as file:
            file.write(encode_header(self.header))
            file.truncate(self.header.file_bytes)
        self.publish(who or identity())

    def publish(self, who: RankIdentity) -> None:
        self._generation += 2
        self.write(IDENTITY_OFFSET, encode_identity(who, generation=self._generation))

    def write(self, offset: int, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY)
        try:
            os.pwrite(fd, data, offset)
        finally:
            os.close(fd)

    def record(
        self,
        *,
        kind: RecordKind = RecordKind.STEP,
        event: EventCode = EventCode.NONE,
        device: int = 0,
        step: int | None = None,
        allocated: int = 4 * GIB,
        reserved: int = 6 * GIB,
        **fields: int | None,
    ) -> Sample:
        """Append one record, ``STEP_S`` after the last; unnamed figures are plausible."""
        self.seq[device] += 1
        self.clock.pass_s(STEP_S)
        sample = Sample(
            seq=self.seq[device],
            kind=kind,
            event=event,
            device=device,
            wall_ns=int(self.clock.unix_s() * 1e9),
            mono_ns=self.clock.monotonic_ns(),
            step=self.seq[device] if step is None else step,
            raw_steps=self.seq[device],
            phase=0,
            allocated_bytes=allocated,
            reserved_bytes=reserved,
            active_bytes=allocated,
            inactive_split_bytes=0,
            requested_bytes=allocated,
            allocated_peak_bytes=allocated,
            reserved_peak_bytes=reserved,
            active_peak_bytes=None,
            inactive_split_peak_bytes=None,
            requested_peak_bytes=None,
            alloc_retries=0,
            ooms=0,
            device_allocs=10,
            device_frees=0,
            segments=5,
            blocks=50,
        )._replace(**fields)  # type: ignore[arg-type] # SAFETY: tests name real fields
        self.write(self.header.offset(device, sample.seq), encode_record(sample))
        return sample

    def tick(self, *, step: int = 0, reserved: int = 6 * GIB) -> Sample:
        return self.record(kind=RecordKind.TICK, step=step, reserved=reserved)


class FakeNode:
    """An agent with everything around it."""

    def __init__(
        self,
        run_dir: Path,
        *,
        readings: Sequence[GpuReading] = (),
        with_nvml: bool = True,
        linger_s: float = 120.0,
        detector_factory: Callable[[], Detector] | None = None,
        evidence: Settings | None = None,
        profiles: NodeProfiles | None = None,
        containers: Containers | None = None,
        wall_s: Callable[[], float] = lambda: 0.0,
        state: AgentState | None = None,
        machine: FakeNode | None = None,
        opener: Opener = LOCAL,
    ) -> None:
        """``machine``: of another agent, which this one follows.
        ``evidence``: with a real collector, by these settings; ``profiles``: with these in place of its own.
        ``wall_s``: the time that reading rings takes."""
        run_dir.mkdir(exist_ok=True)
        self.run_dir = run_dir
        self.clock: FakeClock = FakeClock() if machine is None else machine.clock
        self.gpus = FakeGpus(tuple(readings))
        self.procs = FakeProcs()
        self.steps = FakeSteps()
        self.records = FakeRecords()
        self.pods = PodBook(monotonic_s=self.clock.monotonic_s)
        self.holders = FakeHolders()
        self.collector = (
            None
            if evidence is None
            else open_evidence_collector(evidence, hostname="node-a", clock=self.clock, profiles=profiles)
        )
        self.host_memory = FakeHostMemory()
        if machine is not None:
            self.gpus, self.procs, self.host_memory = machine.gpus, machine.procs, machine.host_memory
        self.detectors: list[ScriptedDetector] = []
        self.agent = NodeAgent(
            Settings(cluster="test", linger_s=linger_s),
            hostname="node-a",
            gpus=self.gpus if with_nvml else None,
            procs=self.procs,
            clock=self.clock,
            run_dirs=[run_dir],
            steps=self.steps,
            records=self.records,
            containers=containers,
            pods=self.pods,
            holders=self.holders,
            evidence=self.collector,
            host_memory=self.host_memory,
            max_s_for_rings=math.inf,
            time_to_read=TenantTime(wall_share=WALL_SHARE, cpu_s=lambda: 0.0, wall_s=wall_s),
            detector_factory=detector_factory or self._new_detector,
            state=state,
            opener=opener,
        )
        _agents.append(self.agent)

    def _new_detector(self) -> ScriptedDetector:
        self.detectors.append(ScriptedDetector())
        return self.detectors[-1]

    def start_rank(
        self,
        *,
        process: ProcessId = PID,
        slurm_job_id: str | None = None,
        pod: PodCgroup | None = None,
        container_id: str | None = None,
        capacity: int = 64,
        devices: int = 1,
        who: RankIdentity | None = None,
    ) -> FakeRank:
        rank = FakeRank(self.run_dir, self.clock, process=process, capacity=capacity, devices=devices, who=who)
        job = None if slurm_job_id is None else SlurmPlace(JobId(slurm_job_id), "0")
        self.procs.facts[process] = ProcessFacts(process, rank.uid, job, pod, container_id)
        return rank

    def start_rank_of(self, uid: int, process: ProcessId, *, who: RankIdentity | None = None) -> FakeRank:
        """A rank of another user's; for root alone."""
        rank = FakeRank(self.run_dir, self.clock, process=process, uid=uid, who=who)
        for path in (rank.path.parent, rank.path):
            os.chown(path, uid, -1)
        self.procs.facts[process] = ProcessFacts(process, uid, None)
        return rank

    def end(self, rank: FakeRank) -> None:
        del self.procs.facts[rank.process]

    def poll(self, after_s: float = 0.5) -> None:
        self.clock.pass_s(after_s)
        self.agent.poll()
        self.agent.search_now()
