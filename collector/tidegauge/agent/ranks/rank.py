"""State of one rank: its last records and its verdict, from which it makes the rank's view."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tidegauge.agent.attribution import Attribution, IdentityProof, attribute
from tidegauge.agent.ports import DetectorFactory, GpuReading, ProcessFacts
from tidegauge.agent.ranks.device_series import DeviceSeries
from tidegauge.agent.ranks.names import RankNames
from tidegauge.core.host_memory import HostMemory
from tidegauge.core.ids import DeviceUuid, ProcessId, RankIdentity
from tidegauge.core.jobs.fraction import fraction_of_settings
from tidegauge.core.samples import EventCode, OomRecord, Sample
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.core.views import RankView, view_of

_log = logging.getLogger(__name__)

PRIMARY_CHANGE = 1.25
"""Another device becomes the rank's when it holds this many times more: two equal ones must not take turns."""

# Which GPU a rank is on: the claim in its ring, checked against what the driver says of its process.


class Placement(NamedTuple):
    """A rank's GPU. ``gpu=None``: neither claim nor driver names a GPU of this node."""

    gpu: GpuReading | None
    overruled: bool
    """The driver contradicts the claim."""


def place(claimed: DeviceUuid | None, pid: int, gpus: Sequence[GpuReading]) -> Placement:
    """The GPU of process ``pid``, which claims to use ``claimed``.

    The driver lists a process only once it has a context, and not at all across some pid namespaces: a claim that
    the driver does not contradict stands. It contradicts by listing the process on other GPUs only.
    """
    bare = None if claimed is None else _bare(claimed)
    named = next((gpu for gpu in gpus if _bare(gpu.uuid) == bare), None)
    if named is not None and named.process_bytes is not None and pid in named.process_bytes:
        return Placement(named, overruled=False)
    listed = [gpu for gpu in gpus if gpu.process_bytes is not None and pid in gpu.process_bytes]
    if named is not None and not listed:
        return Placement(named, overruled=False)
    if not listed:
        return Placement(None, overruled=False)
    seen = max(listed, key=lambda gpu: (gpu.process_bytes or {}).get(pid) or 0)
    return Placement(seen, overruled=claimed is not None)


@lru_cache(maxsize=1024)
def _bare(uuid: str) -> str:
    """PyTorch writes a UUID without the ``GPU-`` in front."""
    return uuid.lower().removeprefix("gpu-")


# Memory limits of a rank on its GPU; ``None`` is unknown.


def cap_bytes(*, total_bytes: int | None, fraction: float | None) -> int | None:
    """The allocator's cap, ``int(fraction * total)`` as ``torch.cuda.set_per_process_memory_fraction`` counts it.

    1.0 removes the cap in PyTorch, so it is none here either.
    """
    if total_bytes is None or fraction is None or fraction >= 1:
        return None
    return int(fraction * total_bytes)


def others_bytes(gpu: GpuReading, pid: int) -> int | None:
    """Bytes of the card that process ``pid`` cannot have: other processes, watched or not, and the driver's reserve."""
    own = None if gpu.process_bytes is None else gpu.process_bytes.get(pid)
    if own is None or gpu.total_bytes is None or gpu.free_bytes is None:
        return None
    return max(0, gpu.total_bytes - gpu.free_bytes - own)


def process_limit_bytes(
    *, total_bytes: int | None, others: int | None, cap: int | None, nontorch_bytes: int | None
) -> int | None:
    """The size of the whole process (reserved + nontorch) at which its next allocation fails.

    The card bounds the process, the cap bounds only what the allocator reserves; the nearer one applies.
    """
    bounds = []
    if total_bytes is not None:
        bounds.append(total_bytes - (others or 0))
    if cap is not None:
        bounds.append(cap + (nontorch_bytes or 0))
    return min(bounds, default=None)


class RankState:
    """A process that writes a ring. Facts come from the kernel, claims from the ring."""

    def __init__(
        self,
        facts: ProcessFacts,
        user_name: str,
        hostname: str,
        detector_factory: DetectorFactory,
        names: RankNames,
    ) -> None:
        """``names``: the process's names in this ring and earlier ones."""
        self.facts = facts
        self.host: HostMemory | None = None
        """Of the rank's process tree, as of this poll; ``None`` where nothing could be read, and once it has ended."""
        self.overruled: set[str] = set()
        """Claims of this rank that slurmd, the kernel or the driver contradicts (``job_id``, ``uuid`` …), or that were
        too many for one process (``rank``, ``labels``: ``ranks.names``)."""
        self._names = names
        self._user_name = user_name
        self._hostname = hostname
        self._detector_factory = detector_factory
        self._devices: dict[int, DeviceSeries] = {}
        self._primary: int | None = None
        self._claimed: RankIdentity | None = None
        self._claimed_fraction: float | None = None
        """The cap that it claims, as a fraction of its device's memory."""
        self._evidence: IdentityProof | None = None
        self._found: Attribution | None = None
        """The claim, corrected by the evidence; ``None`` until there are both."""
        self._gpu: GpuReading | None = None
        self._began_ns: int | None = None
        self._broken = False

    def state_dict(self) -> dict[str, Any]:
        """What records told, which may have been overwritten since; claims are read again, and sources asked."""
        return {
            "devices": [[series.device, series.state_dict()] for series in self._devices.values()],
            "primary": self._primary,
            "began_ns": self._began_ns,
            "overruled": sorted(self.overruled),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no state; then
        this one is of no further use."""
        for device, kept in state["devices"]:
            self._devices[device] = DeviceSeries(device, self._detector_factory)
            self._devices[device].load_state_dict(kept)
        self._primary, self._began_ns = state["primary"], state["began_ns"]
        self.overruled = set(state["overruled"])

    @property
    def is_judged(self) -> bool:
        """Whether the detector has not failed on it."""
        return not self._broken

    @property
    def known(self) -> bool:
        """Whether the rank's claim has been read."""
        return self._claimed is not None

    def claim(self, identity: RankIdentity) -> None:
        believed, overruled = self._names.believe(identity)
        self._claimed = believed
        self.overruled |= overruled
        self._claimed_fraction = believed.limit_fraction or fraction_of_settings(
            believed.alloc_conf, believed.torch_version
        )
        self._identify()

    def weigh(self, evidence: IdentityProof) -> None:
        """Take the evidence of its job from others, against which claims are checked from now on."""
        self._evidence = evidence
        self._identify()

    def _identify(self) -> None:
        if self._claimed is not None and self._evidence is not None:
            self._found = attribute(self._claimed, self._evidence, self.facts, hostname=self._hostname)
            self.overruled |= self._found.overruled

    def observe(self, samples: Sequence[Sample], gpus: Sequence[GpuReading], *, gpus_mono_ns: int) -> None:
        """One poll's readings: the node's GPUs at ``gpus_mono_ns`` (none if NVML failed), then the new records."""
        if self._primary is not None:
            self._measure(self._devices[self._primary], gpus, gpus_mono_ns)
        primary = self._primary
        if samples and self._began_ns is None:
            self._began_ns = samples[0].mono_ns
        for sample in samples:
            series = self._devices.get(sample.device)
            if series is None:
                series = self._devices[sample.device] = DeviceSeries(sample.device, self._detector_factory)
            series.take(sample)
        self._choose_primary()
        if self._primary is not None and self._primary != primary:
            self._locate(self._primary, gpus)
        for series in self._devices.values():
            if series.device != self._primary:  # NVML is not asked about it: a figure that it had would grow old
                series.meter.forget()

    def _measure(self, series: DeviceSeries, gpus: Sequence[GpuReading], mono_ns: int) -> None:
        """Give the meter NVML's figure. A figure that is shown proves that the process is on that GPU, and makes it a
        neighbour there (``core.incidents.observations.is_neighbour``): none outlives its poll, nor a change of the
        GPU."""
        before = self._gpu
        used = self._locate(series.device, gpus)
        if before is not None and self._gpu is not None and self._gpu.uuid != before.uuid:
            series.meter.forget()
        series.meter.nvml_says(used, mono_ns=mono_ns)

    def _choose_primary(self) -> None:
        if len(self._devices) > 1:
            largest = max(self._devices.values(), key=lambda series: (_reserved(series), -series.device))
            current = None if self._primary is None else self._devices[self._primary]
            if current is None or _reserved(largest) > PRIMARY_CHANGE * _reserved(current):
                self._primary = largest.device
        elif self._devices:
            self._primary = next(iter(self._devices))

    def _locate(self, device: int, gpus: Sequence[GpuReading]) -> int | None:
        """Find the GPU of ``device``, and the bytes that the driver says we have there.

        The GPU, a label of the rank's series, stays while NVML cannot be read.
        """
        found = place(self._claimed_uuid(device), self.facts.process.pid, gpus)
        if gpus:
            self._gpu = found.gpu
        if found.overruled:
            self.overruled.add("uuid")
        if found.gpu is None or found.gpu.process_bytes is None:
            return None
        return found.gpu.process_bytes.get(self.facts.process.pid)

    def _claimed_uuid(self, device: int) -> DeviceUuid | None:
        uuids = () if self._claimed is None else self._claimed.device_uuids
        return uuids[device] if device < len(uuids) else None

    def judge(self) -> int:
        """Update the verdict with the new records and this poll's readings; the number of readings judged."""
        points = 0
        try:
            for series in () if self._broken else self._devices.values():
                primary = series.device == self._primary
                points += series.judge(
                    host=self.host if primary else None,
                    limit_bytes=self._process_limit_bytes(series) if primary else None,
                )
        except Exception:
            self._give_up_judging()
        if self._broken:
            for series in self._devices.values():
                series.let_go()
        return points

    def _give_up_judging(self) -> None:
        """Judge this rank no more: one odd series must not cost the others their verdicts."""
        _log.exception("the detector failed on pid %d, which is no longer judged", self.facts.process.pid)
        self._broken = True
        for series in self._devices.values():
            series.stop_judging()

    def _verdict(self, series: DeviceSeries) -> Verdict:
        try:
            return series.verdict
        except Exception:
            self._give_up_judging()
            return OK

    def _cap_fraction(self, series: DeviceSeries) -> float | None:
        """The memory fraction in force; ``None`` for 1.0, which is no cap, and where it is unknown."""
        fraction = series.fraction or self._claimed_fraction
        return fraction if fraction is not None and fraction < 1 else None

    def _cap_bytes(self, series: DeviceSeries) -> int | None:
        total = None if self._gpu is None else self._gpu.usable_bytes
        return cap_bytes(total_bytes=total, fraction=self._cap_fraction(series))

    def _process_limit_bytes(self, series: DeviceSeries) -> int | None:
        if self._gpu is None:
            return None
        return process_limit_bytes(
            total_bytes=self._gpu.total_bytes,
            others=others_bytes(self._gpu, self.facts.process.pid),
            cap=self._cap_bytes(series),
            nontorch_bytes=series.meter.bytes,
        )

    def _last_oom(self, *, now_unix_s: float) -> OomRecord | None:
        records = [(one.out_of_memory, one.private_free_bytes) for one in self._devices.values() if one.out_of_memory]
        if not records:
            return None
        latest, private_free_bytes = max(records, key=lambda record: record[0].mono_ns)
        return OomRecord(
            at_unix_s=min(latest.wall_ns / 1e9, now_unix_s),
            step=latest.step,
            wanted_bytes=latest.event_a,
            free_bytes=latest.event_b,
            limit_bytes=latest.event_c,
            allocated_bytes=latest.allocated_bytes,
            reserved_bytes=latest.reserved_bytes,
            private_free_bytes=private_free_bytes,
        )

    @property
    def _newest(self) -> Sample | None:
        newest: Sample | None = None
        for series in self._devices.values():
            last = series.last
            if last is not None and (newest is None or last.mono_ns > newest.mono_ns):
                newest = last
        return newest

    @property
    def detached(self) -> bool:
        """The probe detached: its last record says so."""
        newest = self._newest
        return newest is not None and newest.event is EventCode.DETACHED

    @property
    def span_ns(self) -> tuple[int, int]:
        """When it wrote the first record that was read and the last one, on CLOCK_MONOTONIC."""
        newest = self._newest
        return self._began_ns or 0, 0 if newest is None else newest.mono_ns

    def view(self, *, now_unix_s: float, alive: bool, parent: ProcessId | None = None) -> RankView | None:
        """The rank as of now; ``None`` while its job is not known or it has written no record."""
        if self._primary is None or self._found is None or self._evidence is None:
            return None
        series = self._devices[self._primary]
        last = series.last
        assert last is not None
        total = None if self._gpu is None else self._gpu.usable_bytes
        return view_of(
            identity=self._found.identity,
            process=self.facts.process,
            uid=self.facts.uid,
            container_id=self.facts.container_id,
            user_namespace_owner=self.facts.user_namespace_owner,
            user_name=self._found.user_name or self._user_name,
            uuid=self._claimed_uuid(self._primary) if self._gpu is None else self._gpu.uuid,
            gpu=None if self._gpu is None else self._gpu.gpu,
            last_sample_unix_s=min(last.wall_ns / 1e9, now_unix_s),
            step=last.step,
            allocated_bytes=last.allocated_bytes,
            reserved_bytes=last.reserved_bytes,
            active_bytes=last.active_bytes,
            inactive_split_bytes=last.inactive_split_bytes,
            requested_bytes=last.requested_bytes,
            allocated_peak_bytes=last.allocated_peak_bytes,
            reserved_peak_bytes=last.reserved_peak_bytes,
            allocated_highest_bytes=series.highest_allocated_bytes,
            reserved_highest_bytes=series.highest_reserved_bytes,
            nontorch_bytes=series.meter.bytes,
            limit_bytes=total if (cap := self._cap_bytes(series)) is None else cap,
            host_rss_bytes=None if self.host is None else self.host.held_bytes,
            alloc_retries=series.since_attach("alloc_retries"),
            ooms=series.since_attach("ooms"),
            steps=last.step,
            verdict=self._verdict(series),
            alive=alive,
            cap_fraction=self._cap_fraction(series),
            last_oom=self._last_oom(now_unix_s=now_unix_s),
            slurm=self._evidence.place,
            pod=self._found.pod,
            host_processes=() if self.host is None else self.host.processes,
            parent=parent,
            detached=self.detached,
        )


def _reserved(series: DeviceSeries) -> int:
    return 0 if series.last is None else series.last.reserved_bytes
