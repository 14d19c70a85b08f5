"""What a program *on* the rig can do to its GPUs: take memory behind the allocator's back, turn knobs while it runs.

Put `Rig().inside` on the job's PYTHONPATH and `import rig_inside`. Standard library only; torch is not needed.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def _library(pattern: str) -> ctypes.CDLL:
    """One of the rig's libraries, as the process already has it or would load it (the folder is on LD_LIBRARY_PATH)."""
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        found = sorted(Path(folder).glob(pattern)) if folder else []
        if found and (Path(folder) / "libfakegpu.so").exists():
            return ctypes.CDLL(str(found[0]))
    raise RuntimeError("this process does not run on the fake-GPU rig: LD_LIBRARY_PATH does not lead to libfakegpu.so")


class OutsideMemory:
    """Device memory that the caching allocator knows nothing of, as NCCL's or another library's would be.

    NVML counts it for this process; `torch.cuda.memory_reserved()` does not. MemoryError when the device is full.
    """

    def __init__(self, size_bytes: int, device: int = 0) -> None:
        self._runtime = _library("libcudart.so.*")
        self._address = ctypes.c_void_p()
        before = ctypes.c_int()
        self._runtime.cudaGetDevice(ctypes.byref(before))
        self._runtime.cudaSetDevice(device)
        error = self._runtime.cudaMalloc(ctypes.byref(self._address), ctypes.c_size_t(size_bytes))
        self._runtime.cudaSetDevice(before)
        self._runtime.cudaGetLastError()
        if error != 0:
            raise MemoryError(f"cudaMalloc of {size_bytes} bytes on device {device} gave error {error}")

    def give_back(self) -> None:
        self._runtime.cudaFree(self._address)
        self._address = ctypes.c_void_p()


def set_malloc_delay_s(delay_s: float) -> None:
    """Each cudaMalloc and cuMemCreate of this process takes that much longer from now on."""
    _library("libfakegpu.so").fakegpu_set_malloc_delay_us(ctypes.c_uint64(round(delay_s * 1e6)))


def fail_next_mallocs(count: int) -> None:
    """The next `count` calls of cudaMalloc or cuMemCreate fail with "out of memory", whatever is free."""
    _library("libfakegpu.so").fakegpu_fail_next_mallocs(ctypes.c_uint64(count))


def hold_events(pending: bool) -> None:
    """While held, no event is ready: blocks given to record_stream() stay active after they are freed."""
    _library("libfakegpu.so").fakegpu_set_events_pending(ctypes.c_int(pending))
