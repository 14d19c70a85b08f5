"""One device of one rank: what its records say, and what its detector makes of them."""

from __future__ import annotations

from tidegauge.agent.nontorch import NontorchMeter
from tidegauge.agent.ports import Detector, DetectorFactory
from tidegauge.core.host_memory import HostMemory
from tidegauge.core.samples import TICKS_ALONE_S, EventCode, RecordKind, Sample
from tidegauge.core.verdicts import OK, Verdict

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
        self.private_free_bytes = 0
        """In private pools, at that error, as far as the probe has told."""
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
            self.out_of_memory, self.private_free_bytes = sample, 0
        if sample.event is EventCode.POOLS_AT_OOM:
            self.private_free_bytes = sample.event_a
        self.last = sample
        if sample.kind is not RecordKind.EVENT:  # an event may repeat the last known numbers
            self.meter.record(sample)
            self._pending.append(sample)

    def judge(self, *, host: HostMemory | None, limit_bytes: int | None) -> int:
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
                host_bytes=None if host is None else host.held_bytes,
                host_free_bytes=None if host is None else host.free_bytes,
                allocated_peak_bytes=sample.allocated_peak_bytes,
                inactive_split_bytes=sample.inactive_split_bytes,
                limit_bytes=limit_bytes,
            )
        return points

    def let_go(self) -> None:
        """The records taken since the last call are not to be judged."""
        self._pending.clear()

    def _step_of(self, sample: Sample) -> int | None:
        """The step that this record is to be judged as, ``None`` for one that is not."""
        if sample.kind is RecordKind.STEP:
            if not self._steps_seen:
                self._steps_seen, self._detector = True, None
            if sample.step <= self._last_step:
                return None
            self._last_step = sample.step
            return sample.step
        if self._steps_seen:
            return None
        self._ticks += 1
        return self._ticks

    @property
    def verdict(self) -> Verdict:
        """The detector's; without the figures in steps if it counted ticks."""
        if self._detector is None or self.last is None:
            return OK
        if not self._steps_seen and self.last.mono_ns - self._first_mono_ns < TICKS_ALONE_S * 1e9:
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
