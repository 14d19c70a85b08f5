"""NVML, NVIDIA's management library: the only module that imports ``pynvml`` (distribution nvidia-ml-py)."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pynvml

from tidegauge.agent.ports import GpuReading, GpuUnavailableError
from tidegauge.core.detector.unheld import MIN_UNHELD_BYTES
from tidegauge.core.ids import DeviceUuid

_log = logging.getLogger(__name__)

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 60.0
"""Back-off of a driver that does not answer: a reload takes seconds, a missing driver may take until the next boot."""
RELIST_S = 60.0
"""How often GPUs and MIG instances are listed again; an admin may partition a GPU differently at run time."""

_GONE = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNKNOWN,
)
"""Answers after which the whole library is started again; others concern one GPU or one question."""

_T = TypeVar("_T")


class _Device(NamedTuple):
    handle: Any
    uuid: DeviceUuid
    gpu: int
    name: str
    memory: tuple[int, int] | None
    """GPU and GPU instance: compute instances of one have one memory. ``None``: not known, or the kernel gives the
    GPU's memory to any process, as the host's (Grace Hopper)."""


class NvmlGpus:
    """The ``GpuSource`` of a machine with an NVIDIA driver. Survives a driver reload.

    A driver *upgrade* under a running agent answers "Driver/library version mismatch" until the agent process is
    restarted, because the old library stays mapped.
    """

    def __init__(
        self, nvml: Any = pynvml, *, sees_all: bool = True, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        """``sees_all``: NVML lists the processes of the whole node, as it does in the host's pid namespace."""
        self._nvml = nvml
        self._sees_all = sees_all
        self._monotonic_s = monotonic_s
        self._devices: tuple[_Device, ...] | None = None
        self._listed_at_s = 0.0
        self._retry_at_s = float("-inf")
        self._retry_s = FIRST_RETRY_S
        self.errors: Counter[str] = Counter()
        """NVML's error texts and how often each came."""

    def read(self) -> tuple[GpuReading, ...]:
        now_s = self._monotonic_s()
        if now_s < self._retry_at_s:
            raise GpuUnavailableError(f"NVML failed; retrying in {self._retry_at_s - now_s:.0f} s")
        try:
            if self._devices is None:
                self._nvml.nvmlInit()
                self._devices = ()
                self._listed_at_s = float("-inf")
            if now_s - self._listed_at_s >= RELIST_S:
                self._devices = tuple(self._list())
                self._listed_at_s = now_s
            readings = _with_siblings(self._devices, [self._read_device(device) for device in self._devices])
        except pynvml.NVMLError as error:
            self._start_again(error, now_s)
            raise GpuUnavailableError(f"NVML: {error}") from error
        self._retry_s = FIRST_RETRY_S
        return readings

    def close(self) -> None:
        if self._devices is not None:
            self._devices = None
            with suppress(pynvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _start_again(self, error: pynvml.NVMLError, now_s: float) -> None:
        self._count(error)
        _log.warning("NVML failed, no GPU figures until it answers (retrying in %.0f s): %s", self._retry_s, error)
        self.close()
        self._retry_at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)

    def _list(self) -> Iterator[_Device]:
        for index in range(self._nvml.nvmlDeviceGetCount()):
            handle = self._ask(self._nvml.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue
            parts = list(self._list_mig(handle, index))
            memory = None if self._is_numa_node(handle) else (index, -1)
            whole = None if parts else self._describe(handle, index, memory)
            yield from [whole] if whole else parts

    def _list_mig(self, parent: Any, gpu: int) -> Iterator[_Device]:
        """The MIG instances of a GPU, none if it is not partitioned. NVML has their memory per instance only."""
        mode = self._ask(self._nvml.nvmlDeviceGetMigMode, parent)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return
        for place in range(self._ask(self._nvml.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
            handle = self._ask(self._nvml.nvmlDeviceGetMigDeviceHandleByIndex, parent, place)
            if handle is None:
                continue
            instance = self._ask(self._nvml.nvmlDeviceGetGpuInstanceId, handle)
            part = self._describe(handle, gpu, None if instance is None else (gpu, instance))
            if part is not None:
                yield part

    def _is_numa_node(self, handle: Any) -> bool:
        try:
            self._nvml.nvmlDeviceGetNumaNodeId(handle)
        except pynvml.NVMLError:
            return False
        return True

    def _describe(self, handle: Any, gpu: int, memory: tuple[int, int] | None) -> _Device | None:
        uuid = self._ask(self._nvml.nvmlDeviceGetUUID, handle)
        name = self._ask(self._nvml.nvmlDeviceGetName, handle)
        return None if uuid is None else _Device(handle, DeviceUuid(_text(uuid)), gpu, _text(name or ""), memory)

    def _read_device(self, device: _Device) -> GpuReading:
        # Version 2 counts the driver's reserve apart from `used`, as dcgm-exporter does; drivers before 510 lack it.
        memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, device.handle, self._nvml.nvmlMemory_v2)
        if memory is None:
            memory = self._ask(self._nvml.nvmlDeviceGetMemoryInfo, device.handle)
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, device.handle)
        process_bytes = None if processes is None else _by_pid(processes)
        used_bytes = None if memory is None else int(memory.used)
        return GpuReading(
            uuid=device.uuid,
            gpu=device.gpu,
            name=device.name,
            total_bytes=None if memory is None else int(memory.total),
            used_bytes=used_bytes,
            free_bytes=None if memory is None else int(memory.free),
            process_bytes=process_bytes,
            reserve_bytes=None if memory is None or not hasattr(memory, "reserved") else int(memory.reserved),
            further_pids=self._further_pids(device, used_bytes, process_bytes),
        )

    def _further_pids(
        self, device: _Device, used_bytes: int | None, process_bytes: Mapping[int, int | None] | None
    ) -> frozenset[int] | None:
        """Two questions of 14 us each (H200), asked only where there is something that somebody must hold."""
        if not self._sees_all or device.memory is None or used_bytes is None or process_bytes is None:
            return None
        if used_bytes - sum(filter(None, process_bytes.values())) < MIN_UNHELD_BYTES:
            return frozenset()
        graphics = self._pids(self._nvml.nvmlDeviceGetGraphicsRunningProcesses, device)
        clients = self._pids(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses, device)
        return None if graphics is None or clients is None else graphics | clients

    def _pids(self, question: Callable[..., Any], device: _Device) -> frozenset[int] | None:
        try:
            return frozenset(process.pid for process in question(device.handle))
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:  # there are none of this kind
                return frozenset()
            self._count(error)
            return None

    def _ask(self, question: Callable[..., _T], *args: Any) -> _T | None:
        """NVML's answer, or ``None`` (counted) if this GPU has none. Raises if the driver itself is gone."""
        try:
            return question(*args)
        except pynvml.NVMLError as error:
            if getattr(error, "value", None) in _GONE:
                raise
            self._count(error)
            return None

    def _count(self, error: pynvml.NVMLError) -> None:
        text = str(error)
        if self.errors[text] == 0:
            _log.info("NVML answers only in part: %s", text)
        self.errors[text] += 1


def open_nvml(nvml: Any = pynvml, *, sees_all: bool = True) -> NvmlGpus | None:
    """NVML, or ``None`` (logged once) on a machine without an NVIDIA driver. ``sees_all`` as of ``NvmlGpus``.

    A driver that does not answer yet, as early at boot, is tried again by ``read``.
    """
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            _log.info("no NVIDIA driver on this machine: no GPU totals, no memory outside PyTorch's allocator")
            return None
        _log.warning("the NVIDIA driver does not answer yet: %s", error)
        return NvmlGpus(nvml, sees_all=sees_all)
    nvml.nvmlShutdown()
    return NvmlGpus(nvml, sees_all=sees_all)


def _with_siblings(devices: Sequence[_Device], readings: Sequence[GpuReading]) -> tuple[GpuReading, ...]:
    """Processes on one compute instance may hold memory of every other one that has the same."""
    by_memory: dict[tuple[int, int] | None, list[GpuReading]] = {}
    for device, reading in zip(devices, readings, strict=True):
        by_memory.setdefault(device.memory, []).append(reading)
    shared = {
        memory: frozenset(pid for one in found for pid in (*(one.process_bytes or ()), *(one.further_pids or ())))
        for memory, found in by_memory.items()
        if memory is not None and len(found) > 1
    }
    return tuple(
        replace(reading, further_pids=shared[device.memory])
        if reading.further_pids is not None and device.memory in shared
        else reading
        for device, reading in zip(devices, readings, strict=True)
    )


def _by_pid(processes: Any) -> dict[int, int | None]:
    """Bytes by pid; ``None`` where the driver has N/A (``nvidia-ml-py`` maps NVML_VALUE_NOT_AVAILABLE to it)."""
    used: dict[int, int | None] = {}
    for process in processes:
        size = process.usedGpuMemory
        before = used.get(process.pid, 0)
        used[process.pid] = None if size is None or before is None else before + int(size)
    return used


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
