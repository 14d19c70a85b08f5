"""Watching: finds the devices that this process uses, and records each at step boundaries, ticks and events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Optional

from tidegauge.core.samples import EventCode, RecordKind
from tidegauge.probe.faults import Faults
from tidegauge.probe.run_files.ring_writer import RingWriter
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.readings import Counts, counts_of
from tidegauge.probe.step_counting.steps import StepCounter

MIN_STEP_GAP_NS = 10_000_000
"""At most 100 step records a second. In a step of 6 ms that only launches tiny kernels, a record costs 47 us (H200,
caches cold), 0.8 %; every second one costs half of that and tells a detector of trends no less."""
TICK_GAP_NS = 450_000_000
"""A tick is left out when a record was written this recently: in a training loop that steps twice a second or faster
the helper thread never takes the allocator's lock."""
LOOK_EVERY_TICKS = 4
"""Ticks between two looks at devices that were not in use."""
TOUCH_EVERY_TICKS = 120


class Watch:
    """Reads the devices in use and writes their records. Lives from attach to detach."""

    def __init__(
        self,
        backend: Backend,
        ring: RingWriter,
        steps: StepCounter,
        faults: Faults,
        *,
        device_count: int,
        mono_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.used: list[int] = []
        """Ordinals of devices on which this process holds memory of the allocator, or did."""
        self.limit_fraction: Optional[float] = None
        self._read = backend.read
        self._ring = ring
        self._steps = steps
        self._faults = faults
        self._unused = list(range(device_count))
        self._last: dict[int, Counts] = {}
        self._mono_ns = mono_ns
        self._began_ns = mono_ns()
        self._last_step_ns = -MIN_STEP_GAP_NS
        self._last_record_ns = -TICK_GAP_NS
        self._ticks = 0
        self._looks_at_steps = 8

    @property
    def quiet_s(self) -> float:
        """Since the last step boundary, or since watching began."""
        return (self._mono_ns() - max(self._began_ns, self._last_step_ns)) / 1e9

    def step(self) -> None:
        """A step boundary: one record for each device in use, unless the last one was a moment ago."""
        now_ns = self._mono_ns()
        if now_ns - self._last_step_ns < MIN_STEP_GAP_NS:
            return
        if not self.used and self._looks_at_steps:
            self._looks_at_steps -= 1  # afterwards the ticks look: a job that trains on the CPU is not held up
            self.look_for_devices()
        self._last_step_ns = self._last_record_ns = now_ns
        for device in self.used:
            self._record(device, RecordKind.STEP)

    def tick(self) -> None:
        """Twice a second from the helper thread: a record if there was none, and now and then the rarer duties."""
        self._ticks += 1
        if self._ticks % LOOK_EVERY_TICKS == 1 or not self.used:
            self.look_for_devices()
        if self._ticks % TOUCH_EVERY_TICKS == 0:
            self._ring.touch()
        now_ns = self._mono_ns()
        if now_ns - self._last_record_ns < TICK_GAP_NS:
            return
        self._last_record_ns = now_ns
        for device in self.used:
            self._record(device, RecordKind.TICK)

    def read_once_more(self) -> None:
        """A record of each device, however recent the last one is."""
        for device in self.used:
            self._record(device, RecordKind.TICK)

    def event(self, event: EventCode, facts: tuple[int, int, int] = (0, 0, 0), *, device: Optional[int] = None) -> None:
        """Record an event on one device, which is in use from now on, or on all in use."""
        if device is not None and device not in self.used:
            self._begin(device)
        for each in self.used if device is None else [device]:
            if each in self.used:
                self._record(each, RecordKind.EVENT, event, facts)

    def note(self, event: EventCode, facts: tuple[int, int, int] = (0, 0, 0)) -> None:
        """Record an event with the last known numbers, when the allocator must not be asked."""
        for device in self.used:
            if device in self._last:
                self._write(device, self._last[device], RecordKind.EVENT, event, facts)

    def look_for_devices(self) -> None:
        """Begin with each device on which the allocator holds memory by now."""
        for device in list(self._unused):
            reserved = counts_of(self._read(device))[1]
            if reserved:
                self._begin(device)

    def _begin(self, device: int) -> None:
        if device not in self._unused:
            return  # another thread was first, or there is no room for it
        self._unused.remove(device)
        try:
            self._ring.reserve(device)
        except OSError as error:
            self._faults.say_once(f"no space for records of device {device} ({error.strerror}): it is not watched")
            return
        try:
            self._record(device, RecordKind.EVENT, EventCode.ATTACHED)
            if self.limit_fraction is not None:
                self._record(device, RecordKind.EVENT, EventCode.FRACTION_SET, (round(self.limit_fraction * 1e6), 0, 0))
        except BaseException:
            self._unused.append(device)  # to be tried again
            raise
        self.used = [*self.used, device]  # a new list: another thread may be walking the old one

    def _record(
        self,
        device: int,
        kind: RecordKind,
        event: EventCode = EventCode.NONE,
        facts: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        counts = counts_of(self._read(device))
        self._last[device] = counts
        self._write(device, counts, kind, event, facts)

    def _write(
        self, device: int, counts: Counts, kind: RecordKind, event: EventCode, facts: tuple[int, int, int]
    ) -> None:
        steps = self._steps
        self._ring.append(
            device, counts, kind=kind, event=event, steps=steps.steps, raw_steps=steps.raw_steps, facts=facts
        )
