"""Memory that a GPU's driver counts as used, less that of the processes that NVML lists: in cases where the two might
differ. Needs a GPU that nobody else uses, and root for MPS: ``python bench/gpu_unheld.py`` (docs/agent.md)."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pynvml

SIZE = 2 << 30
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/unheld-mps", "CUDA_MPS_LOG_DIRECTORY": "/tmp/unheld-mps"}


class AllocationProperties(ctypes.Structure):
    """``CUmemAllocationProp``: pinned, on device 0, to be exported as a file descriptor."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("place", ctypes.c_int * 2),
        ("rest", ctypes.c_long * 2),
    )


def hold(kind: str) -> None:
    """Be the process that holds memory, until the input ends."""
    cuda, pointer, handle, fd = ctypes.CDLL("libcuda.so.1"), ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int(-1)

    def ask(name: str, *given: Any) -> None:
        result = getattr(cuda, name)(*given)
        assert result == 0, f"{name}: {result}"

    context = ctypes.c_void_p()
    ask("cuInit", 0)
    ask("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    ask("cuCtxSetCurrent", context)
    if kind == "plain":
        ask("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(SIZE))
    elif kind == "managed":
        ask("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(SIZE), 1)
        ask("cuMemsetD8_v2", pointer, 1, ctypes.c_size_t(SIZE))
        ask("cuCtxSynchronize")
    elif kind == "exported":
        wanted = AllocationProperties(1, 1, (1, 0))
        ask("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(SIZE), ctypes.byref(wanted), ctypes.c_uint64(0))
        ask("cuMemExportToShareableHandle", ctypes.byref(fd), handle, 1, ctypes.c_uint64(0))
        os.set_inheritable(fd.value, True)
        subprocess.Popen(["sleep", "20"], pass_fds=(fd.value,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    print("ready", flush=True)
    sys.stdin.read()


def show(gpu: Any, what: str) -> None:
    v2 = pynvml.nvmlDeviceGetMemoryInfo(gpu, pynvml.nvmlMemory_v2)
    lists = {
        name: {one.pid: one.usedGpuMemory and one.usedGpuMemory >> 20 for one in ask(gpu)}
        for name, ask in (
            ("compute", pynvml.nvmlDeviceGetComputeRunningProcesses),
            ("MPS", pynvml.nvmlDeviceGetMPSComputeRunningProcesses),
            ("graphics", pynvml.nvmlDeviceGetGraphicsRunningProcesses),
        )
    }
    unheld = v2.used / 2**20 - sum(size or 0 for size in lists["compute"].values())
    print(
        f"{what:32} used {v2.used / 2**20:8.1f} reserved {v2.reserved / 2**20:6.1f} unheld {unheld:8.1f} MiB {lists}",
        flush=True,
    )


def try_one(gpu: Any, kind: str, *, signal: int | None = None, environ: Mapping[str, str] | None = None) -> None:
    words = [sys.executable, __file__, kind]
    with subprocess.Popen(words, stdin=-1, stdout=-1, env={**os.environ, **(environ or {})}) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n", kind
        time.sleep(0.5)
        show(gpu, f"{kind}, alive")
        if signal is not None:
            holder.send_signal(signal)
    for after_s in (0.0, 0.2, 2.0):
        time.sleep(after_s)
        show(gpu, f"{kind}, ended, {after_s:g} s later")


def main() -> None:
    pynvml.nvmlInit()
    print(pynvml.nvmlSystemGetDriverVersion())
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    show(gpu, "idle")
    for kind in ("context", "plain", "managed"):
        try_one(gpu, kind)
    try_one(gpu, "plain", signal=9)
    try_one(gpu, "exported")
    time.sleep(20)
    show(gpu, "exported, descriptor closed")
    os.makedirs(MPS["CUDA_MPS_PIPE_DIRECTORY"], exist_ok=True)
    subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **MPS}, check=True)
    try:
        try_one(gpu, "plain", environ=MPS)
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env={**os.environ, **MPS}, check=False)
    show(gpu, "MPS, ended")


if __name__ == "__main__":
    hold(sys.argv[1]) if len(sys.argv) > 1 else main()
