"""OOM snapshot: writes what the process held when it ran out of memory, and sums it up for the explanation.

It is taken inside torch's observer, in the thread that is about to get the OutOfMemoryError, and costs some
microseconds a block. The file is torch's own snapshot, pickled, with one key more: torch's viewers read it.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Optional

from tidegauge.core.evidence.held_memory import FreeBlock, HeldMemory, hold
from tidegauge.core.evidence.owners import CodeLine, LiveBlock
from tidegauge.core.ids import ProcessId
from tidegauge.core.run_dirs import oom_snapshot_name
from tidegauge.probe.run_files.run_folder import RunFolder
from tidegauge.probe.runtime.backend import Backend
from tidegauge.probe.runtime.rank_snapshot import counted

FACTS_KEY = "tidegauge"
MAX_BLOCKS = 50_000
"""Beyond this it is not taken: 100 bytes and a microsecond each, some three times that with stacks."""
MAX_EVENTS = 20_000
"""Of the job's own allocation history. A longer one is left out, or, where torch cannot leave it out (before 2.11), the
snapshot is: a history of 100,000 events with C++ stacks holds up the process for nine seconds."""
MAX_FILE_BYTES = 16 << 20
REST = 20
"""A job that catches the error and retries spends at most 1/20 of its time on snapshots."""


class RefusedAllocation(NamedTuple):
    """The arguments of torch's observer, in bytes."""

    device: int
    wanted_bytes: int
    limit_bytes: int
    free_bytes: int


class OomSnapshots:
    """Takes one process's OOM snapshots, and keeps the newest."""

    def __init__(
        self,
        backend: Backend,
        folder: RunFolder,
        process: ProcessId,
        *,
        clock_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._name = oom_snapshot_name(process)
        self._clock_s = clock_s
        self._not_before_s = float("-inf")

    def take(
        self, refusal: RefusedAllocation, devices: Sequence[int], facts: Mapping[str, object]
    ) -> Optional[HeldMemory]:
        """Take a snapshot and write it; the memory that the device held, or ``None`` where it is left out.

        ``devices``: those in use; ``facts``: further content of the file. Exceptions of torch pass through.
        """
        began_s, unix_s = self._clock_s(), time.time()
        if began_s < self._not_before_s:
            return None
        try:
            taken = self._take(devices)
            if taken is None:
                return None
            with suppress(OSError):  # no room, a quota: no fault of the probe's, and its last words need no file
                self._write({**taken, FACTS_KEY: {**refusal._asdict(), "unix_s": unix_s, **facts}})
            return _held(taken, refusal.device)
        finally:
            now_s = self._clock_s()
            self._not_before_s = now_s + REST * (now_s - began_s)

    def _take(self, devices: Sequence[int]) -> Optional[Mapping[str, Any]]:
        counts = counted(self._backend, devices)
        if counts.blocks > MAX_BLOCKS:
            return None
        return self._backend.snapshot(history=counts.events <= MAX_EVENTS)

    def _write(self, snapshot: Mapping[str, Any]) -> None:
        content = pickle.dumps(snapshot, protocol=4)
        if len(content) > MAX_FILE_BYTES or not self._folder.has_room_for(len(content)):
            self._folder.remove(self._name)  # an older one is of another error
            return
        self._folder.write(self._name, content)


def _held(snapshot: Mapping[str, Any], device: int) -> HeldMemory:
    from tidegauge.probe.code_roots import known_roots  # here, for a process that never runs out of memory

    live, free, pending_bytes = [], [], 0
    for segment, block in _blocks(snapshot, device):
        size_bytes, state = block["size"], block["state"]
        if state == "inactive":
            pool = tuple(segment.get("segment_pool_id", (0, 0)))
            free.append(FreeBlock(size_bytes, segment["stream"], segment["segment_type"] == "large", pool))
        elif state == "active_allocated":
            frames = block.get("frames", ())
            stack = [CodeLine(frame["filename"], frame["line"], frame["name"]) for frame in frames]
            live.append(LiveBlock(size_bytes, stack))
        else:
            pending_bytes += size_bytes
    return hold(live, free, pending_bytes=pending_bytes, roots=known_roots())


def _blocks(snapshot: Mapping[str, Any], device: int) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for segment in snapshot["segments"]:
        if segment["device"] == device:
            for block in segment["blocks"]:
                yield segment, block
