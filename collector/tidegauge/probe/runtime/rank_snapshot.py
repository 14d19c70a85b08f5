"""Snapshots of this process's allocator during training: taken at a step boundary, within bounds.

A snapshot is one call of torch's, which holds the GIL: about a microsecond for each block and each event (an H200's
host: 12 ms for 10,000 events with Python stacks). Everything else is done later, elsewhere (``snapshot_packing``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Optional

from tidegauge.core.ids import RankIdentity
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.history import History, Recorder

MAX_BLOCKS = 30_000
"""Beyond this none is taken: with stacks, that many blocks take some 30 ms."""
MAX_EVENTS = 20_000
"""Events that torch before 2.11, which cannot leave them out, may add: 22 ms on an H200's host."""


RECORDED_STEPS = 3
"""Whole steps that a ring of events should hold at least."""
MIN_EVENTS = 5_000
"""Of a ring, if the steps are small: 18 ms on an H200's host."""


class NoSnapshotError(Exception):
    """No snapshot can be taken; the message gives the reason, for people."""


class RawSnapshot(NamedTuple):
    """A snapshot in torch's form."""

    content: Mapping[str, Any]
    facts: Mapping[str, Any]
    """Tidegauge's additions (``PackedSnapshot.facts``)."""
    took_s: float
    """Seconds for which all Python threads stood still."""

    @property
    def step(self) -> int:
        """Training steps that the process had finished."""
        return int(self.facts["step"])


class Counts(NamedTuple):
    """Totals over all devices in use, so far."""

    blocks: int
    """Live ones (``allocation.all.current``)."""
    events: int
    """Events that a recording from the beginning could have; freeing is two."""


def counted(backend: Backend, devices: Sequence[int]) -> Counts:
    """The size of a snapshot of these devices."""
    blocks = events = 0
    for device in devices:
        allocations = backend.read(device)["allocation"]["all"]
        blocks += allocations["current"]
        events += allocations["allocated"] + 2 * allocations["freed"]
    return Counts(blocks, events)


class RankSnapshots:
    """Takes snapshots of one watched process."""

    def __init__(
        self,
        backend: Backend,
        history: Optional[History],
        *,
        identity: Callable[[], Optional[RankIdentity]],
        devices: Callable[[], Sequence[int]],
        steps: Callable[[], int],
    ) -> None:
        self.steps = steps
        self._backend = backend
        self._history = history
        self._identity = identity
        self._devices = devices

    @property
    def capturing(self) -> bool:
        """Whether this thread captures a CUDA graph, in which the allocator must be left alone."""
        return self._backend.capturing()

    def enough_events(self, most: int) -> int:
        """The size of a ring for ``RECORDED_STEPS`` of this job's mean events a step, at most ``most``: each event
        makes the snapshot's call longer."""
        steps = self.steps()
        if steps <= 0:
            return most
        each = counted(self._backend, self._devices()).events // steps
        return min(most, max(MIN_EVENTS, RECORDED_STEPS * each))

    def allocations(self) -> dict[int, int]:
        """How often memory was allocated so far, by device in use (``allocation.all.allocated``)."""
        return {device: self._backend.read(device)["allocation"]["all"]["allocated"] for device in self._devices()}

    def take(self, *, most_events: int, recorded: Optional[int] = None) -> RawSnapshot:
        """One of all devices, in the calling thread, with the events of a recording if there are at most
        ``most_events``. ``recorded``: how many there may be, where more is known than the size of our ring. Raises
        ``NoSnapshotError``, and what torch raises."""
        devices = self._devices()
        if not devices:
            raise NoSnapshotError("this process has not used a device yet")
        counts = counted(self._backend, devices)
        if counts.blocks > MAX_BLOCKS:
            raise NoSnapshotError(
                f"the process has {counts.blocks:,} memory blocks; listing over {MAX_BLOCKS:,} would stall training"
            )
        recorder = self._history.recorder() if self._history is not None else Recorder.NOBODY
        entries = self._history.entries if self._history is not None else None
        events = counts.events if recorded is None else min(counts.events, recorded)
        events = events if entries is None else min(events, entries * len(devices))
        began_s, unix_s = time.perf_counter(), time.time()
        content = self._content(0 if recorder is Recorder.NOBODY else events, most_events)
        took_s = time.perf_counter() - began_s
        return RawSnapshot(content, self._facts(recorder, devices[0], unix_s), took_s)

    def _content(self, events: int, most_events: int) -> Mapping[str, Any]:
        content = self._backend.snapshot(history=0 < events <= most_events)
        if content is None and events <= MAX_EVENTS:
            content = self._backend.snapshot(history=True)
        if content is None:
            raise NoSnapshotError(
                f"torch {self._backend.torch_version} cannot leave out the events of the recorded allocation "
                f"history, up to {events:,}: listing them would stall training"
                if events
                else f"torch {self._backend.torch_version} has no snapshots for {self._backend.name.upper()}"
            )
        return content

    def _facts(self, recorder: Recorder, device: int, unix_s: float) -> dict[str, Any]:
        identity = self._identity()
        total_bytes = self._backend.total_bytes(device)
        fraction = identity.limit_fraction if identity is not None else None
        return {
            "torch_version": self._backend.torch_version,
            "step": self.steps(),
            "unix_s": unix_s,
            "pid": os.getpid(),
            "rank": int(identity.rank) if identity is not None else None,
            "device_uuids": list(identity.device_uuids) if identity is not None else [],
            "total_bytes": total_bytes,
            "cap_bytes": round(total_bytes * fraction) if total_bytes and fraction and fraction < 1 else None,
            "recording": recorder.value,
            "history_began_step": self._history.began_step if self._history is not None else None,
        }
