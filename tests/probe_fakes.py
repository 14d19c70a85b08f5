"""Stand-ins for torch on the probe's seam. Standard library only: they run under every Python that the probe does."""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, Optional

from tidegauge.core.ids import DeviceUuid, ProcessId, RankIdentity
from tidegauge.core.ring_layout import (
    HEADER_BYTES,
    RECORD_BYTES,
    RingHeader,
    decode_header,
    decode_identity,
    decode_record,
)
from tidegauge.core.samples import Sample
from tidegauge.probe.faults import Faults
from tidegauge.probe.process_facts import OwnProcessFacts
from tidegauge.probe.runtime.backend import Backend, OutOfMemoryCall, StepHook
from tidegauge.probe.runtime.history import History

MIB = 1 << 20


def nested_stats(
    allocated: int, reserved: int, *, ooms: int = 0, peak: Optional[int] = None, retries: int = 0
) -> dict[str, Any]:
    """Statistics nested as torch nests them; the other numbers follow from these, each different from the others."""

    def gauge(current: int) -> dict[str, Any]:
        pool = {"current": current, "peak": current if peak is None else peak, "allocated": current, "freed": 0}
        return {"all": pool, "small_pool": dict(pool), "large_pool": dict(pool)}

    return {
        "allocated_bytes": gauge(allocated),
        "reserved_bytes": gauge(reserved),
        "active_bytes": gauge(allocated + 1),
        "inactive_split_bytes": gauge(allocated + 2),
        "requested_bytes": gauge(allocated + 3),
        "segment": gauge(4),
        "allocation": gauge(5),
        "num_alloc_retries": retries,
        "num_ooms": ooms,
        "num_device_alloc": 6,
        "num_device_free": 7,
        "max_split_size": -1,
    }


class FakeBackend(Backend):
    """A device runtime under the test's control: nothing is there until ``initialise()``."""

    def __init__(self, devices: int = 1, *, caps_without_context: bool = True) -> None:
        self.name = "cuda"
        self.torch_version = "2.13.0"
        self.read: Callable[[int], Mapping[str, Any]] = self._read
        self.stats = [nested_stats(0, 0) for _ in range(devices)]
        self.reads: list[int] = []
        self.read_error: Optional[Exception] = None
        self.fractions: list[tuple[int, float]] = []
        self.emptied: list[int] = []
        self.blind: Optional[str] = None
        self.group: Optional[tuple[int, int]] = None
        self.shared: Optional[FakeStore] = None
        self.is_capturing = False
        self.recording = FakeRecording()
        self.torch = self.recording.torch
        self.has_history = True
        self.leaves_events_out = True
        """Whether this torch has snapshots without the events of a recording (from 2.11 on)."""
        self.snapshot_taken: Optional[Mapping[str, Any]] = None
        self.snapshots_with_history: list[bool] = []
        self.step_hook: Optional[StepHook] = None
        self.module_hook: Optional[Callable[[object], None]] = None
        self.module_hook_error: Optional[Exception] = None
        self.has_module_hook = True
        """Whether this process does not compile."""
        self.observers: list[OutOfMemoryCall] = []
        self._devices = devices
        self._initialised_in: Optional[int] = None
        self._queued: list[Callable[[], None]] = []
        self._caps_without_context = caps_without_context

    def initialise(self) -> None:
        """What the job's first CUDA call does."""
        self._initialised_in = os.getpid()
        for call in self._queued:
            call()

    def hold(self, device: int, allocated: int, reserved: int) -> None:
        """The process now holds this much on the device."""
        self.stats[device] = nested_stats(allocated, reserved)

    def _read(self, device: int) -> Mapping[str, Any]:
        self.reads.append(device)
        if self.read_error is not None:
            raise self.read_error
        return self.stats[device]

    def when_ready(self, call: Callable[[], None]) -> None:
        if self.ready():
            call()
        else:
            self._queued.append(call)

    def ready(self) -> bool:
        return self._initialised_in == os.getpid()

    def device_count(self) -> int:
        return self._devices

    def device_uuids(self, _environ: Mapping[str, str], /) -> tuple[DeviceUuid, ...]:
        return tuple(DeviceUuid(f"GPU-fake-{device}") for device in range(self._devices))

    def blind_because(self) -> Optional[str]:
        return self.blind

    def caps_without_context(self) -> bool:
        return self._caps_without_context

    def set_fraction(self, fraction: float, device: int) -> None:
        self.fractions.append((device, fraction))

    def on_out_of_memory(self, call: OutOfMemoryCall, /) -> bool:
        self.observers.append(call)
        return True

    def empty_cache(self, device: int, /) -> None:
        self.emptied.append(device)

    def is_out_of_memory(self, error: BaseException, /) -> bool:
        return isinstance(error, FakeOutOfMemoryError)

    def snapshot(self, *, history: bool) -> Optional[Mapping[str, Any]]:
        self.snapshots_with_history.append(history)
        if self.recording.enabled is not None and not history and not self.leaves_events_out:
            return None
        return copy.deepcopy(self.snapshot_taken)

    def history(self, faults: Faults, /) -> Optional[History]:
        return History(self.torch, faults) if self.has_history else None

    def total_bytes(self, _device: int, /) -> Optional[int]:
        return 8192 * MIB

    def capturing(self) -> bool:
        return self.is_capturing

    def on_optimizer_step(self, hook: StepHook) -> None:
        self.step_hook = hook

    def on_module_call(self, call: Callable[[object], None]) -> Optional[Callable[[], None]]:
        if self.module_hook_error is not None:
            raise self.module_hook_error
        if not self.has_module_hook:
            return None
        self.module_hook = call

        def remove() -> None:
            self.module_hook = None

        return remove

    def compiles(self) -> bool:
        return not self.has_module_hook

    def call_module(self, module: object) -> None:
        """What an outermost module's call does."""
        if self.module_hook is not None:
            self.module_hook(module)

    def distributed(self) -> Optional[tuple[int, int]]:
        return self.group

    def store(self) -> Optional[FakeStore]:
        return self.shared


def block(address: int, size_bytes: int, line: int = 0, *, state: str = "active_allocated") -> dict[str, Any]:
    """As torch lists it; allocated at that line of ``train.py``, or without a stack."""
    frames = [
        {"name": "linear", "filename": "/x/site-packages/torch/nn/functional.py", "line": 9},
        {"name": "forward", "filename": "/home/ada/train.py", "line": line},
    ]
    return {
        "address": address, "size": size_bytes, "requested_size": size_bytes - 1, "state": state,
        "frames": frames if line else [],
    }  # fmt: skip


def torch_snapshot(blocks: list[dict[str, Any]], events: int = 0, *, device: int = 0) -> dict[str, Any]:
    """As torch gives it: one segment of blocks, each where the one before ends, and a trace of allocations."""
    segment = {
        "device": device, "address": blocks[0]["address"], "total_size": sum(one["size"] for one in blocks),
        "stream": 0, "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "blocks": blocks,
    }  # fmt: skip
    frames = blocks[0]["frames"]
    event = {"action": "alloc", "addr": 1 << 20, "size": 512, "stream": 0, "time_us": 7, "pool_id": (0, 0)}
    trace = [{**event, "frames": frames} if frames else dict(event) for _ in range(events)]
    return {
        "segments": [segment],
        "device_traces": [*([] for _ in range(device)), trace],
        "allocator_settings": {"expandable_segments": False},
    }


class FakeRecording:
    """Torch's recorder of allocation history, and a torch whose calls reach it as the real ones do."""

    def __init__(self) -> None:
        self.enabled: Optional[str] = None
        self.entries: Optional[int] = None
        self.stacks: Optional[str] = None
        self.calls: list[Optional[str]] = []
        """What ``enabled`` was in each call that torch's recorder got."""
        self.error: Optional[Exception] = None

        def native(enabled: Optional[str], context: Optional[str], stacks: str, max_entries: int) -> None:
            self.calls.append(enabled)
            if self.error is not None:
                raise self.error
            self.enabled, self.entries = enabled, max_entries
            self.stacks = stacks if context is not None else None

        def native_legacy(enabled: bool) -> None:
            native("all" if enabled else None, "all", "all", 1)

        def record(
            enabled: Optional[str] = "all",
            context: Optional[str] = "all",
            stacks: str = "all",
            max_entries: int = 1 << 60,
        ) -> None:
            self.torch._C._cuda_record_memory_history(enabled, context, stacks, max_entries)

        self.native, self.native_legacy = native, native_legacy
        self.torch = fake_torch(
            _C=SimpleNamespace(
                _cuda_record_memory_history=native,
                _cuda_record_memory_history_legacy=native_legacy,
                _cuda_isHistoryEnabled=lambda: self.enabled is not None,
            ),
            cuda=SimpleNamespace(memory=SimpleNamespace(_record_memory_history=record)),
        )

    @property
    def as_it_was(self) -> bool:
        """Whether torch's own calls are in their seats."""
        seats = self.torch._C
        return (
            seats._cuda_record_memory_history is self.native
            and seats._cuda_record_memory_history_legacy is self.native_legacy
        )

    def of_the_job(self, enabled: Optional[str] = "all", **arguments: Any) -> None:
        """The job's own call."""
        self.torch.cuda.memory._record_memory_history(enabled, **arguments)


class FakeOutOfMemoryError(RuntimeError):
    """As torch names it."""


class FakeStore:
    """The key-value store of a process group whose ranks are threads, or take turns, in one process."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, key: str, amount: int, /) -> int:
        with self._lock:
            self.counts[key] = self.counts.get(key, 0) + amount
            return self.counts[key]

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        with self._lock:
            if self.texts.get(key, "") == expected:
                self.texts[key] = desired
            return self.texts[key].encode()


class FakeOptimizer:
    """Calls the post-step hook from a wrapper around ``step``, as torch does."""

    def __init__(self, backend: FakeBackend, params: Optional[list[object]] = None) -> None:
        self.param_groups: list[dict[str, object]] = [{"params": [object()] if params is None else params}]
        self._backend = backend

    def step(self, inner: Optional[Callable[[], None]] = None) -> None:
        """One step; ``inner`` is what it calls meanwhile, such as the ``step`` of its base class."""
        wrapped_step(self, self._backend, inner)


def wrapped_step(optimizer: FakeOptimizer, backend: FakeBackend, inner: Optional[Callable[[], None]]) -> None:
    """The one code object that all steps run through, like torch's ``profile_hook_step.<locals>.wrapper``."""
    if inner is not None:
        inner()
    if backend.step_hook is not None:
        backend.step_hook(optimizer, sys._getframe(0))


class FakeModule:
    """Has weak references, as torch's modules do."""


def facts_of_this_process() -> OwnProcessFacts:
    """Facts with the real pid (a fork differs) and a start time that no real process has."""
    return OwnProcessFacts(hostname="node1", process=ProcessId(os.getpid(), 77))


class Ring:
    """What a reader finds in a ring file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._data = file.read()
        page = self._data[:HEADER_BYTES]
        self.header: RingHeader = decode_header(page, file_bytes=len(self._data))
        self.identity: Optional[RankIdentity] = decode_identity(page)

    def samples(self, device: int = 0) -> list[Sample]:
        """The readable records of a device, oldest first."""
        found = []
        for slot in range(self.header.capacity):
            at = self.header.offset(device, slot + 1)
            sample = decode_record(self._data[at : at + RECORD_BYTES])
            if sample is not None:
                found.append(sample)
        return sorted(found, key=lambda sample: sample.seq)


def rings_below(run_dir: str) -> list[str]:
    """Paths of all ring files below a run directory."""
    return [
        os.path.join(folder, name)
        for folder, _, names in os.walk(run_dir)
        for name in sorted(names)
        if name.endswith(".ring")
    ]


def fake_torch(**parts: Any) -> Any:
    """A module-like torch with the attributes given."""
    return SimpleNamespace(**parts)
