"""Ports through which the node agent queries the machine, and their values (implementations: nvml, procfs)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from tidegauge.core.ids import DeviceUuid, JobId, ProcessId
from tidegauge.core.jobs.kubernetes import PodCgroup
from tidegauge.core.jobs.slurm import SlurmJobRecord, SlurmPlace
from tidegauge.core.jobs.tenants import Tenant
from tidegauge.core.verdicts import Verdict


@dataclass(frozen=True)
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
    further_pids: frozenset[int] | None = None
    """Host pids of other processes that may hold memory of it: graphics, clients of MPS, processes on another compute
    instance of the same memory. ``None``: who else does cannot be told."""

    @property
    def usable_bytes(self) -> int | None:
        """Memory available to processes: the total that CUDA reports (``cudaDeviceProp.totalGlobalMem``).

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
        """Release the driver. ``read`` is not called afterwards."""


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class ProcessUsage:
    """A living process's current memory use."""

    rss_bytes: int | None
    """Resident memory, ``VmRSS``."""
    shared_bytes: int | None = None
    """Of it: pages of files and of shared memory (``statm``)."""

    @property
    def anonymous_bytes(self) -> int | None:
        """Anonymous resident memory (``RssAnon``), or all that is resident where the parts are unknown. Pages that
        forks share count in each of them."""
        return None if self.rss_bytes is None else self.rss_bytes - (self.shared_bytes or 0)


class ProcSource(Protocol):
    """The processes of this node.

    ``None`` is a process that has ended; with ``OSError`` (no descriptors left, no permission) its state is unknown.
    """

    def find(self, process: ProcessId, *, mount_namespaces: Collection[int] | None = None) -> ProcessFacts | None:
        """The living process that calls itself ``process``, in our own or in a nested pid namespace; in one of these
        mount namespaces (their inodes), where they are given.

        ``None`` if it ended, cannot be seen from here, or the pid now belongs to another process.
        """

    def usage(self, process: ProcessId) -> ProcessUsage | None:
        """Figures of a process from ``ProcessFacts``; ``None`` once it has ended (a zombie has)."""

    def ancestors(self, process: ProcessId) -> tuple[ProcessId, ...]:
        """Ancestors of a process from ``ProcessFacts``, its parent first; none once it has ended."""

    def process_at(self, pid: int) -> ProcessId | None:
        """The living process that has this pid now, as NVML lists it; ``None`` if there is none."""

    def is_gone(self, pid: int) -> bool:
        """Whether no process has this pid, or one that has ended; also where other users' cannot be looked at."""

    def looks_like_data_worker(self, process: ProcessId) -> bool:
        """Whether it has the name of torch's DataLoader workers, or Python's ``multiprocessing`` started it: a claim of
        the process. ``False`` once it ended."""

    def user_name(self, uid: int) -> str:
        """The login name, or the uid as text where there is none."""


def has_ended(procs: ProcSource, process: ProcessId) -> bool:
    """Whether a process from ``ProcessFacts`` has ended; false where its state is unknown."""
    try:
        return procs.usage(process) is None
    except OSError:
        return False


class NoPlace(Enum):
    """Reasons why slurmd has named no job for a process, or the head no workload for its pod."""

    NOT_ASKED = "not asked"
    """This is no Slurm node, or the process is in no pod; or the source is disabled."""
    WAITING = "waiting"
    """The source is being asked."""
    OUTSIDE = "outside"
    """slurmd knows all processes of its jobs, and this is none of them."""
    SILENT = "silent"
    """The source has not answered for seconds."""


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
        """Host pids of all processes of all steps, some seconds old; none before the first answer. ``None``: this is no
        Slurm node."""

    def health(self) -> SourceHealth | None:
        """The last question's result; ``None`` before it, and where no source is asked."""

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
        """The containers that have every one of these; none while there is no answer."""

    def health(self) -> SourceHealth | None:
        """The last question's result; ``None`` before it, and where no source is asked."""

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
        """The record of a job; ``None`` where there is none, or it cannot be trusted."""


class Clock(Protocol):
    """Clocks. ``monotonic_ns`` is CLOCK_MONOTONIC, as in a rank's records, so that the two compare."""

    def unix_s(self) -> float: ...

    def monotonic_ns(self) -> int: ...


class SystemClock:
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

    def state_dict(self) -> Mapping[str, Any]:
        """All that it remembers, as JSON can say it."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no state."""


DetectorFactory = Callable[[], Detector]
"""Makes the detector of one device of one rank."""
