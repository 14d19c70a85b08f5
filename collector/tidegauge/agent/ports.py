"""Ports through which the node agent queries the machine, and their values (implementations: nvml, procfs)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from tidegauge.core.ids import DeviceUuid, JobId, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.jobs.slurm import SlurmJobRecord, SlurmPlace
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU or MIG instance at one moment. ``None``: the driver does not give this figure."""

    uuid: DeviceUuid
    gpu: int
    """NVML index; of the parent GPU for a MIG instance, as dcgm-exporter's ``gpu`` label."""
    name: str
    total_bytes: int | None
    """``nvidia-smi --query-gpu=memory.total``."""
    used_bytes: int | None
    """``memory.used``: without the driver's own reserve where NVML tells them apart."""
    free_bytes: int | None
    """``memory.free``: what an allocation could still get."""
    process_bytes: Mapping[int, int | None] | None
    """``nvidia-smi --query-compute-apps=pid,used_memory`` by host pid; ``None`` if processes cannot be listed."""
    reserve_bytes: int | None = None
    """``memory.reserved``: what the driver keeps for itself."""

    @property
    def usable_bytes(self) -> int | None:
        """The most that processes can have: the total that CUDA reports (``cudaDeviceProp.totalGlobalMem``).

        On an H200 it is NVML's total less the driver's reserve, to the byte (615 MiB less, driver 580.159). Fractions
        of a card are fractions of this.
        """
        return None if self.total_bytes is None else self.total_bytes - (self.reserve_bytes or 0)


class GpuUnavailableError(RuntimeError):
    """No GPU can be read now (driver reloading, NVML failing). Try again at the next poll."""


class GpuSource(Protocol):
    """The GPUs of this node."""

    def read(self) -> tuple[GpuReading, ...]:
        """Every GPU and MIG instance now, ordered by index, within milliseconds. Raises ``GpuUnavailableError``."""

    def close(self) -> None:
        """Let the driver go. ``read`` is not called afterwards."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process's facts from the kernel that do not change while it lives."""

    process: ProcessId
    """As this node's agent sees it: the host's pid, also for a process in a container."""
    uid: int
    """Effective uid: the one that owns the files that the process makes."""
    slurm: SlurmPlace | None
    """The Slurm job and step whose cgroup the process is in; ``None`` outside Slurm, or where cgroups do not tell."""
    pod: PodCgroup | None = None
    """The pod whose cgroup it is in; ``None`` outside Kubernetes."""

    container_id: str | None = None
    """The container outside pods and Slurm that an engine of root's made for it."""
    user_namespace_owner: int | None = None
    """The user, not root, who made the user namespace that it is in; ``None`` in the node's own, and in root's."""

    @property
    def tenant(self) -> Tenant:
        """The process's tenant as far as the kernel knows (``NamespacesOfPods`` knows more)."""
        if self.pod is not None:
            return Tenant(None, pod_uid=self.pod.pod_uid)
        uid = self.uid if self.user_namespace_owner is None else self.user_namespace_owner
        return Tenant(uid, container_id=self.container_id)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A living process's current memory use."""

    rss_bytes: int | None
    """Resident memory, ``VmRSS``."""
    shared_bytes: int | None = None
    """Of it: pages of files and of shared memory (``statm``)."""

    @property
    def anonymous_bytes(self) -> int | None:
        """Memory that is no file's and not shared by name (``RssAnon``); all that is resident where the parts are not
        known. What forks share, each of them has."""
        return None if self.rss_bytes is None else self.rss_bytes - (self.shared_bytes or 0)


class ProcSource(Protocol):
    """The processes of this node.

    A process that has ended is ``None``; ``OSError`` means that looking failed (no descriptors left, no permission) and
    says nothing about the process.
    """

    def find(self, process: ProcessId, *, mount_namespaces: Collection[int] | None = None) -> ProcessFacts | None:
        """The living process that calls itself ``process``, in our own or in a nested pid namespace; in one of these
        mount namespaces (their inodes), where they are given.

        ``None`` if it ended, cannot be seen from here, or the pid now belongs to another process.
        """

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        """Figures of a process from ``ProcessFacts``; ``None`` once it has ended (a zombie has)."""

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """Those that a process from ``ProcessFacts`` descends from, its parent first; none once it has ended."""

    def process_at(self, pid: int) -> ProcessId | None:
        """The living process that has this pid now, as NVML lists it; ``None`` if there is none."""

    def looks_like_data_worker(self, process: ProcessId) -> bool:
        """Whether it is called as torch calls a DataLoader's workers, or Python's ``multiprocessing`` started it: by
        its own word, it may call itself what it likes. ``False`` once it ended."""

    def user_name(self, uid: int) -> str:
        """The login name, or the uid as text where there is none."""


def has_ended(procs: ProcSource, process: ProcessId) -> bool:
    """Whether a process from ``ProcessFacts`` has ended; a failure to look says nothing."""
    try:
        return procs.usage(process) is None
    except OSError:
        return False


class NoPlace(Enum):
    """Reasons why slurmd has named no job for a process, or the head no workload for its pod."""

    NOT_ASKED = "not asked"
    """This is no Slurm node, or the process is in no pod; or it is switched off."""
    WAITING = "waiting"
    """It is being asked."""
    OUTSIDE = "outside"
    """It knows all processes of its jobs, and this is none of them."""
    SILENT = "silent"
    """It was asked for seconds and does not answer."""


class SourceHealth(NamedTuple):
    """The last result of a source that is asked in a thread of its own."""

    success: bool
    duration_s: float


class StepSource(Protocol):
    """Slurm jobs and steps on this node, as its slurmd knows them. Never blocks; answers arrive later."""

    def place_of(self, process: ProcessId) -> SlurmPlace | NoPlace:
        """Job and step of a process from ``ProcessFacts`` (no array ids). ``OUTSIDE`` and ``SILENT`` may still change
        to a place; a place is for good."""

    def pids(self) -> frozenset[int] | None:
        """Pids, as the host counts them, of all processes of all steps, some seconds old; none before the first answer.
        ``None`` where nobody is asked: this is no Slurm node."""

    def health(self) -> SourceHealth | None:
        """The last question's result; ``None`` before it, and where nobody is asked."""

    def close(self) -> None:
        """Ask no more."""


class NoSteps:
    """The ``StepSource`` of a node without Slurm."""

    def place_of(self, process: ProcessId) -> SlurmPlace | NoPlace:  # noqa: ARG002 - the port's
        return NoPlace.NOT_ASKED

    def pids(self) -> None:
        return None

    def health(self) -> SourceHealth | None:
        return None

    def close(self) -> None:
        pass


class HeldBy(NamedTuple):
    """A container to which the kubelet gave a device."""

    namespace: str
    pod: str
    container: str


class HolderSource(Protocol):
    """Containers and their GPUs, as this node's kubelet knows them. Never blocks; answers are some seconds old."""

    def holders_of(self, uuids: Collection[DeviceUuid]) -> frozenset[HeldBy]:
        """The containers that have every one of these; none where nobody says anything."""

    def health(self) -> SourceHealth | None:
        """The last question's result; ``None`` before it, and where nobody is asked."""

    def close(self) -> None:
        """Ask no more."""


class NoHolders:
    """The ``HolderSource`` of a node without a kubelet."""

    def holders_of(self, uuids: Collection[DeviceUuid]) -> frozenset[HeldBy]:  # noqa: ARG002 - the port's
        return frozenset()

    def health(self) -> SourceHealth | None:
        return None

    def close(self) -> None:
        pass


class RecordSource(Protocol):
    """The job records that this node's Slurm prolog wrote."""

    def record_of(self, job_id: JobId) -> SlurmJobRecord | None:
        """``None`` where the prolog is not ours, or what lies there cannot be trusted."""


class Clock(Protocol):
    """Clocks. ``monotonic_ns`` is CLOCK_MONOTONIC, as in a rank's records, so that the two compare."""

    def unix_s(self) -> float: ...

    def monotonic_ns(self) -> int: ...


class SystemClock:
    """The machine's clocks."""

    def unix_s(self) -> float:
        return time.time()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class Detector(Protocol):
    """The part of ``tidegauge.core.detector.RankDetector`` that the agent uses."""

    @property
    def verdict(self) -> Verdict: ...

    def update(
        self,
        *,
        step: int,
        time_s: float,
        allocated_bytes: int,
        reserved_bytes: int,
        nontorch_bytes: int | None = None,
        host_bytes: int | None = None,
        allocated_peak_bytes: int | None = None,
        inactive_split_bytes: int | None = None,
        limit_bytes: int | None = None,
        host_free_bytes: int | None = None,
    ) -> Verdict:
        """One step's readings; ``None`` is a signal that was not read at this step."""


DetectorFactory = Callable[[], Detector]
"""Makes the detector of one device of one rank."""
