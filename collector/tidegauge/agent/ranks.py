"""What the agent knows of one rank: its last records, its verdict, and how they become the view of it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidegauge.agent.attribution import Attribution, Evidence, attribute
from tidegauge.agent.limits import cap_bytes, others_bytes, process_limit_bytes
from tidegauge.agent.nontorch import NontorchMeter
from tidegauge.agent.placement import place
from tidegauge.agent.ports import Detector, DetectorFactory, GpuReading, ProcessFacts
from tidegauge.core.fraction import fraction_of_settings
from tidegauge.core.ids import DeviceUuid, RankIdentity
from tidegauge.core.incidents import OomRecord
from tidegauge.core.samples import EventCode, RecordKind, Sample
from tidegauge.core.verdicts import OK, Verdict
from tidegauge.core.views import RankView

_log = logging.getLogger(__name__)

TICKS_ALONE_S = 300.0
"""A rank that ends no step for so long is judged by its ticks. Before that, loading a model would look like growth."""
PRIMARY_CHANGE = 1.25
"""Another device becomes the rank's when it holds this many times more: two equal ones must not take turns."""
_MILLIONTHS = 1_000_000


class DeviceSeries:
    """One device of one rank: its newest record, its counters since attach, its detector."""

    def __init__(self, device: int, detector_factory: DetectorFactory) -> None:
        self.device = device
        self.last: Sample | None = None
        self.fraction: float | None = None
        """From the last ``FRACTION_SET`` record."""
        self.out_of_memory: Sample | None = None
        """The last ``OUT_OF_MEMORY`` record."""
        self.meter = NontorchMeter()
        self._detector: Detector | None = None
        self._detector_factory = detector_factory
        self._baseline: Sample | None = None
        self._pending: list[Sample] = []
        self._first_mono_ns = 0
        self._steps_seen = False
        self._ticks = 0
        self._last_step = -1

    def take(self, sample: Sample) -> None:
        """One new record, in order. Judged later, by ``judge``, when the poll's other readings are known."""
        if self._baseline is None:
            self._first_mono_ns = sample.mono_ns
        if self._baseline is None or (sample.kind is RecordKind.EVENT and sample.event is EventCode.ATTACHED):
            self._baseline = sample
        if sample.event is EventCode.FRACTION_SET and 0 < sample.event_a <= _MILLIONTHS:
            self.fraction = sample.event_a / _MILLIONTHS
        if sample.event is EventCode.OUT_OF_MEMORY:
            self.out_of_memory = sample
        self.last = sample
        if sample.kind is not RecordKind.EVENT:  # an event may repeat the last known numbers
            self.meter.record(sample)
            self._pending.append(sample)

    def judge(self, *, host_bytes: int | None, limit_bytes: int | None) -> int:
        """Feed the detector with the records since the last call: steps, or ticks of a rank that has no steps. How many
        it was given."""
        pending, self._pending = self._pending, []
        points = 0
        for sample in pending:
            step = self._step_of(sample)
            if step is None:
                continue
            if self._detector is None:
                self._detector = self._detector_factory()
            points += 1
            self._detector.update(
                step=step,
                time_s=sample.mono_ns / 1e9,
                allocated_bytes=sample.allocated_bytes,
                reserved_bytes=sample.reserved_bytes,
                nontorch_bytes=self.meter.bytes,
                host_bytes=host_bytes,
                allocated_peak_bytes=sample.allocated_peak_bytes,
                limit_bytes=limit_bytes,
            )
        return points

    def _step_of(self, sample: Sample) -> int | None:
        """The step that this record is to be judged as, ``None`` for one that is not."""
        if sample.kind is RecordKind.STEP:
            if not self._steps_seen:
                self._steps_seen, self._detector = True, None
            if sample.step <= self._last_step:
                return None
            self._last_step = sample.step
            return sample.step
        if self._steps_seen or sample.mono_ns - self._first_mono_ns < TICKS_ALONE_S * 1e9:
            return None
        self._ticks += 1
        return self._ticks

    @property
    def verdict(self) -> Verdict:
        """The detector's; without the figures in steps if it counted ticks."""
        if self._detector is None:
            return OK
        verdict = self._detector.verdict
        if self._steps_seen:
            return verdict
        return verdict._replace(
            onset_step=None, suspect_step=None, alarm_step=None, bytes_per_step=None, steps_to_oom=None
        )  # fmt: skip

    def since_attach(self, name: str) -> int | None:
        """A counter's growth since the probe attached, or since the oldest record that was left when we came."""
        assert self.last is not None
        now: int | None = getattr(self.last, name)
        start: int | None = getattr(self._baseline, name)
        if now is None or start is None:
            return now
        # Lower than at the start: torch.cuda.reset_accumulated_memory_stats() set it to zero.
        return now - start if now >= start else now


class RankState:
    """One process that writes a ring. The facts come from the kernel, the claims from the ring."""

    def __init__(self, facts: ProcessFacts, user_name: str, hostname: str, detector_factory: DetectorFactory) -> None:
        self.facts = facts
        self.rss_bytes: int | None = None
        self.overruled: set[str] = set()
        """Claims of this rank that slurmd, the kernel or the driver contradicts: ``job_id``, ``uuid`` …"""
        self._user_name = user_name
        self._hostname = hostname
        self._detector_factory = detector_factory
        self._devices: dict[int, DeviceSeries] = {}
        self._primary: int | None = None
        self._claimed: RankIdentity | None = None
        self._claimed_fraction: float | None = None
        """Of its device's memory: the cap that it says it was given."""
        self._evidence: Evidence | None = None
        self._found: Attribution | None = None
        """The claim, corrected by the evidence; ``None`` until there are both."""
        self._gpu: GpuReading | None = None
        self._broken = False

    @property
    def known(self) -> bool:
        """Whether the rank has said who it is."""
        return self._claimed is not None

    def claim(self, identity: RankIdentity) -> None:
        """Who the rank says it is."""
        self._claimed = identity
        self._claimed_fraction = identity.limit_fraction or fraction_of_settings(
            identity.alloc_conf, identity.torch_version
        )
        self._identify()

    def weigh(self, evidence: Evidence) -> None:
        """What others say of its job: from now on claims are measured by it."""
        self._evidence = evidence
        self._identify()

    def _identify(self) -> None:
        if self._claimed is not None and self._evidence is not None:
            self._found = attribute(self._claimed, self._evidence, self.facts, hostname=self._hostname)
            self.overruled |= self._found.overruled

    def observe(self, samples: Sequence[Sample], gpus: Sequence[GpuReading], *, gpus_mono_ns: int) -> None:
        """One poll's readings: the node's GPUs at ``gpus_mono_ns`` (none if NVML failed), then the new records."""
        if self._primary is not None:
            used = self._locate(self._primary, gpus)
            self._devices[self._primary].meter.nvml_says(used, mono_ns=gpus_mono_ns)
        primary = self._primary
        for sample in samples:
            series = self._devices.get(sample.device)
            if series is None:
                series = self._devices[sample.device] = DeviceSeries(sample.device, self._detector_factory)
            series.take(sample)
        self._choose_primary()
        if self._primary is not None and self._primary != primary:
            self._locate(self._primary, gpus)

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

        The GPU stays while NVML cannot be read: it is what the rank's series are named by.
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
        """Bring the verdict up to date with the records taken and the readings of this poll; how many records that
        were."""
        points = 0
        if self._broken:
            return points
        try:
            for series in self._devices.values():
                primary = series.device == self._primary
                points += series.judge(
                    host_bytes=self.rss_bytes if primary else None,
                    limit_bytes=self._process_limit_bytes(series) if primary else None,
                )
        except Exception:
            # One rank's odd series must not cost the others their verdicts.
            _log.exception("the detector failed on pid %d, which is not judged any more", self.facts.process.pid)
            self._broken = True
        return points

    def _cap_fraction(self, series: DeviceSeries) -> float | None:
        """The memory fraction in force; ``None`` for 1.0, which is no cap, and where nothing is known of one."""
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
        records = [series.out_of_memory for series in self._devices.values() if series.out_of_memory is not None]
        latest = max(records, key=lambda sample: sample.mono_ns, default=None)
        if latest is None:
            return None
        return OomRecord(
            at_unix_s=min(latest.wall_ns / 1e9, now_unix_s),
            step=latest.step,
            wanted_bytes=latest.event_a,
            free_bytes=latest.event_b,
            limit_bytes=latest.event_c,
            allocated_bytes=latest.allocated_bytes,
            reserved_bytes=latest.reserved_bytes,
        )

    @property
    def detached(self) -> bool:
        """The probe said goodbye, and nothing came after."""
        series = [series.last for series in self._devices.values() if series.last is not None]
        newest = max(series, key=lambda sample: sample.mono_ns, default=None)
        return newest is not None and newest.event is EventCode.DETACHED

    def view(self, *, now_unix_s: float, alive: bool) -> RankView | None:
        """The rank as of now; ``None`` while its job is not known or it has written no record."""
        if self._primary is None or self._found is None or self._evidence is None:
            return None
        series = self._devices[self._primary]
        last = series.last
        assert last is not None
        total = None if self._gpu is None else self._gpu.usable_bytes
        return RankView(
            identity=self._found.identity,
            process=self.facts.process,
            uid=self.facts.uid,
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
            nontorch_bytes=series.meter.bytes,
            limit_bytes=total if (cap := self._cap_bytes(series)) is None else cap,
            host_rss_bytes=self.rss_bytes,
            alloc_retries=series.since_attach("alloc_retries"),
            ooms=series.since_attach("ooms"),
            steps=last.step,
            verdict=series.verdict,
            alive=alive,
            cap_fraction=self._cap_fraction(series),
            last_oom=self._last_oom(now_unix_s=now_unix_s),
            slurm=self._evidence.place,
            pod=self._found.pod,
        )


def _reserved(series: DeviceSeries) -> int:
    return 0 if series.last is None else series.last.reserved_bytes
