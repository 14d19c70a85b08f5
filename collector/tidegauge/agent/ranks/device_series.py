"""Series of one rank on one device: its records, and the verdicts of its detectors on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from tidegauge.agent.ports import Detector, DetectorFactory
from tidegauge.core.host_memory import HostMemory
from tidegauge.core.samples import TICKS_ALONE_S, EventCode, RecordKind, Sample
from tidegauge.core.verdicts import OK, Signal, Verdict, alarm_level
from tidegauge.core.wire import from_wire, to_wire

# Memory of a process outside PyTorch's allocator: NVML's figure minus ``reserved``, both of the same moment.
# The two are read at different times. A segment that the allocator takes or gives back in between would look like
# memory of NCCL or of the CUDA context, gigabytes of it. So a figure of NVML waits for the first record *after* it:
# what is reserved before and after bounds what was reserved at that moment.

PATIENCE_NS = 2_000_000_000
"""How long a figure waits for the next record: four ticks. A rank that writes none is stuck, and so is its memory."""


class _Waiting(NamedTuple):
    mono_ns: int
    used_bytes: int
    before: Sample
    overdue: bool = False
    """``PATIENCE_NS`` was over when NVML was asked again; the records of that poll may still settle it: after a pause
    of the agent, or of the machine, they are in the ring."""


class NontorchMeter:
    """Non-torch bytes of a rank on a device. Takes NVML's figures and each record in the order of the agent's polls."""

    def __init__(self) -> None:
        self.bytes: int | None = None
        """The last settled figure; ``None`` before the first, and while NVML does not tell the process's bytes."""
        self._last: Sample | None = None
        self._waiting: _Waiting | None = None

    def state_dict(self) -> dict[str, Any]:
        """Without a figure that waits: the driver is asked again."""
        return {"bytes": self.bytes, "last": to_wire(self._last)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.bytes, self._last = state["bytes"], _sample(state["last"])

    def nvml_says(self, used_bytes: int | None, *, mono_ns: int) -> None:
        """``used_bytes`` on this device at ``mono_ns`` on CLOCK_MONOTONIC. Call before feeding the poll's records."""
        if used_bytes is None:
            self.forget()
        elif self._waiting is None:
            if self._last is not None:
                self._waiting = _Waiting(mono_ns, used_bytes, self._last)
        elif self._waiting.overdue:
            self._settle(self._waiting, after=self._waiting.before)
        elif mono_ns - self._waiting.mono_ns > PATIENCE_NS:
            self._waiting = self._waiting._replace(overdue=True)

    def forget(self) -> None:
        """Discard NVML's figures: they are of another GPU, or NVML gives none any more."""
        self.bytes = self._waiting = None

    def record(self, sample: Sample) -> None:
        waiting = self._waiting
        if waiting is not None:
            if sample.mono_ns >= waiting.mono_ns:
                self._settle(waiting, after=sample)
            else:
                self._waiting = waiting._replace(before=sample)
        self._last = sample

    def _settle(self, waiting: _Waiting, *, after: Sample) -> None:
        """Bounded by what was reserved around the reading; the last figure stays unless the bounds exclude it.

        With no last figure the lower bound is taken: never show memory that may not be there. Reserved may in
        truth have risen and fallen between two records (a flush), which nothing here can see.
        """
        low = max(0, waiting.used_bytes - max(waiting.before.reserved_bytes, after.reserved_bytes))
        high = max(0, waiting.used_bytes - min(waiting.before.reserved_bytes, after.reserved_bytes))
        self.bytes = low if self.bytes is None else min(max(self.bytes, low), high)
        self._waiting = None


# A device is judged by training steps, or by time where these are rare. Pure.

RARE_STEP_S = 120.0
"""Steps less than this apart are a run; training of the largest models is. Where they are rarer (reinforcement
learning, evaluations of a whole data set), what happens between them matters more. Of slow but regular steps ticks say
little: a batch stays as large as it is for many of them, and a few batches of chance look like growth."""


class StepRuns:
    """Decides whether steps or time count. Steps do while they come in runs; time does from ``TICKS_ALONE_S`` after the
    last run until a run has lasted as long: a burst of steps after each rollout changes nothing."""

    def __init__(self, first_s: float) -> None:
        """``first_s``: the time of the first record."""
        self.by_time = False
        self._last_step_s: float | None = None
        self._run_began_s = self._run_ended_s = first_s

    def state_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> StepRuns:
        runs = cls(0.0)
        vars(runs).update({name: state[name] for name in vars(runs)})
        return runs

    @property
    def stepped(self) -> bool:
        return self._last_step_s is not None

    def record(self, now_s: float) -> bool:
        """Any record, before ``step`` where it is one. Whether a step that ended now would be rare: not in a run with
        the one before. The first one is."""
        if now_s - self._run_ended_s >= TICKS_ALONE_S:
            self.by_time = True
        return self._last_step_s is None or now_s - self._last_step_s >= RARE_STEP_S

    def step(self, now_s: float, *, rare: bool) -> None:
        """A step ended; ``rare``: as ``record`` said of it. The first one begins the training."""
        if self._last_step_s is None:
            self.by_time = False
            self._run_began_s = self._run_ended_s = now_s
        elif rare:
            self._run_began_s = now_s
        else:
            self._run_ended_s = now_s
            if now_s - self._run_began_s >= TICKS_ALONE_S:
                self.by_time = False
        self._last_step_s = now_s


_NUMBERS = (
    "highest_allocated_bytes", "highest_reserved_bytes", "fraction", "private_free_bytes", "_ticks", "_last_tick_ns",
)  # fmt: skip
_SAMPLES = ("last", "out_of_memory", "_baseline", "_last_step")


def _sample(kept: Any) -> Sample | None:
    return None if kept is None else from_wire(Sample, kept)


_MILLIONTHS = 1_000_000
_TICK_GAP_NS = 400_000_000
"""Minimum gap of readings on the time axis, as of ticks: steps come faster."""


class DeviceSeries:
    """One rank on one device: its newest record, its counters since attach, and its detectors: one by steps, and one by
    time for long phases without steps (``StepRuns``)."""

    def __init__(self, device: int, detector_factory: DetectorFactory) -> None:
        self.device = device
        self.last: Sample | None = None
        self.highest_allocated_bytes = 0
        """Of all records since the last ``FRACTION_SET``, with PyTorch's peaks in them; so is the next."""
        self.highest_reserved_bytes = 0
        self.fraction: float | None = None
        """From the last ``FRACTION_SET`` record."""
        self.out_of_memory: Sample | None = None
        """The last ``OUT_OF_MEMORY`` record."""
        self.private_free_bytes = 0
        """Free bytes in private pools at that error, from the probe."""
        self.meter = NontorchMeter()
        self._detector_factory = detector_factory
        self._baseline: Sample | None = None
        self._pending: list[Sample] = []
        self._runs: StepRuns | None = None
        self._by_steps: Detector | None = None
        self._last_step: Sample | None = None
        self._by_time: Detector | None = None
        """Begins with a pause between steps, ends with a run of them."""
        self._ticks = 0
        self._last_tick_ns = 0

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, once the records that were taken are judged."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            **{name: to_wire(getattr(self, name)) for name in _SAMPLES},
            "meter": self.meter.state_dict(),
            "runs": None if self._runs is None else self._runs.state_dict(),
            "by_steps": None if self._by_steps is None else self._by_steps.state_dict(),
            "by_time": None if self._by_time is None else self._by_time.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another one was. Raises ``ValueError``, ``KeyError`` or ``TypeError`` for what is no state."""
        for name in _NUMBERS:
            setattr(self, name, state[name])
        for name in _SAMPLES:
            setattr(self, name, _sample(state[name]))
        self.meter.load_state_dict(state["meter"])
        self._runs = None if state["runs"] is None else StepRuns.of_state(state["runs"])
        self._by_steps, self._by_time = self._detector(state["by_steps"]), self._detector(state["by_time"])

    def _detector(self, state: Mapping[str, Any] | None) -> Detector | None:
        if state is None:
            return None
        detector = self._detector_factory()
        detector.load_state_dict(state)
        return detector

    def take(self, sample: Sample) -> None:
        """One new record, in order. Judged later, by ``judge``, when the poll's other readings are known."""
        if self._baseline is None or (sample.kind is RecordKind.EVENT and sample.event is EventCode.ATTACHED):
            self._baseline = sample
        if sample.event is EventCode.FRACTION_SET and 0 < sample.event_a <= _MILLIONTHS:
            self.fraction = sample.event_a / _MILLIONTHS
            self.highest_allocated_bytes = self.highest_reserved_bytes = 0  # under another limit
        if sample.event is EventCode.OUT_OF_MEMORY:
            self.out_of_memory, self.private_free_bytes = sample, 0
        if sample.event is EventCode.POOLS_AT_OOM:
            self.private_free_bytes = sample.event_a
        self.last = sample
        allocated, reserved = sample.allocated_peak_bytes or 0, sample.reserved_peak_bytes or 0
        if allocated < sample.allocated_bytes:
            allocated = sample.allocated_bytes
        if reserved < sample.reserved_bytes:
            reserved = sample.reserved_bytes
        if allocated > self.highest_allocated_bytes:
            self.highest_allocated_bytes = allocated
        if reserved > self.highest_reserved_bytes:
            self.highest_reserved_bytes = reserved
        if sample.kind is not RecordKind.EVENT:  # an event may repeat the last known numbers
            self.meter.record(sample)
            self._pending.append(sample)

    def judge(self, *, host: HostMemory | None, limit_bytes: int | None) -> int:
        """Feed the detectors with the records since the last call; the number of readings."""
        pending, self._pending = self._pending, []
        nontorch_bytes = self.meter.bytes
        host_bytes, host_free_bytes = (None, None) if host is None else (host.held_bytes, host.free_bytes)
        points = 0
        for sample in pending:
            judges = self._judges_of(sample)
            points += len(judges)
            for detector, step in judges:
                detector.update(
                    step=step,
                    time_s=sample.mono_ns / 1e9,
                    allocated_bytes=sample.allocated_bytes,
                    reserved_bytes=sample.reserved_bytes,
                    nontorch_bytes=nontorch_bytes,
                    host_bytes=host_bytes,
                    host_free_bytes=host_free_bytes,
                    allocated_peak_bytes=sample.allocated_peak_bytes,
                    inactive_split_bytes=sample.inactive_split_bytes,
                    limit_bytes=limit_bytes,
                )
        return points

    def let_go(self) -> None:
        """Drop the records taken since the last call unjudged."""
        self._pending.clear()

    def stop_judging(self) -> None:
        """Judge no more, and discard what was found."""
        self._pending.clear()
        self._by_steps = self._by_time = None

    def _judges_of(self, sample: Sample) -> tuple[tuple[Detector, int], ...]:
        """The detectors that get this record, and its step for each."""
        now_s = sample.mono_ns / 1e9
        runs = self._runs = self._runs or StepRuns(now_s)
        rare = runs.record(now_s)
        judges: tuple[tuple[Detector, int], ...] = ()
        if sample.kind is RecordKind.STEP:
            if self._last_step is not None and sample.step <= self._last_step.step:
                return ()
            first = not runs.stepped
            runs.step(now_s, rare=rare)
            rare = rare and not first
            self._last_step = sample
            self._by_steps = self._by_steps or self._detector_factory()
            judges = ((self._by_steps, sample.step),)
        if not (runs.by_time or rare):
            self._by_time = None
        elif self._by_time is None or sample.mono_ns - self._last_tick_ns >= _TICK_GAP_NS:
            self._ticks = 1 if self._by_time is None else self._ticks + 1
            self._last_tick_ns = sample.mono_ns
            self._by_time = self._by_time or self._detector_factory()
            judges = (*judges, (self._by_time, self._ticks))
        return judges

    @property
    def verdict(self) -> Verdict:
        """The surer and graver verdict of those by steps and, where time counts, by time; the latter has no figures in
        steps."""
        by_steps = OK if self._by_steps is None else self._by_steps.verdict
        if self._by_time is None or self._runs is None or not self._runs.by_time:
            return by_steps
        by_time = self._by_time.verdict._replace(
            onset_step=None, suspect_step=None, alarm_step=None, bytes_per_step=None, steps_to_oom=None
        )
        return by_time if self._is_given_back(by_steps) else max(by_steps, by_time, key=_gravity)

    def _is_given_back(self, found: Verdict) -> bool:
        """Whether less than half is left of a growth that was found by steps; the rank may make no more steps."""
        last, then = self.last, self._last_step
        if last is None or then is None or found.grown_bytes is None:
            return False
        given_back = {
            Signal.ALLOCATED: then.allocated_bytes - last.allocated_bytes,
            Signal.RESERVED: then.reserved_bytes - last.reserved_bytes,
        }
        return 2 * (0 if found.signal is None else given_back.get(found.signal, 0)) > found.grown_bytes

    def since_attach(self, name: str) -> int | None:
        """A counter's growth since the probe attached, or since the oldest record that was left when we came."""
        assert self.last is not None
        now: int | None = getattr(self.last, name)
        start: int | None = getattr(self._baseline, name)
        if now is None or start is None:
            return now
        # Lower than at the start: torch.cuda.reset_accumulated_memory_stats() set it to zero.
        return now - start if now >= start else now


def _gravity(verdict: Verdict) -> tuple[int, int]:
    return alarm_level(verdict.state, verdict.severity)
