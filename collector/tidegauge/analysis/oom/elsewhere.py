"""Lines of a log that speak of memory that ran out, but not in PyTorch's allocator: whose words they are, what to do.

A table, searched line by line. What is told apart here is mixed up most often: the GPU's memory and the host's.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

_OUTSIDE = (
    "It asks the driver for memory directly, and what PyTorch keeps cached is not free for it: leave it room by a cap "
    "(TIDEGAUGE_MEMORY_FRACTION=0.9, or torch.cuda.set_per_process_memory_fraction), or lower PyTorch's own peak."
)
_HOST = "The GPU has no part in it: look at the job's memory request, DataLoader workers and their prefetching."


class Elsewhere(NamedTuple):
    """One way to run out of memory that is not ``torch.OutOfMemoryError``."""

    kind: str
    pattern: re.Pattern[str]
    what: str
    """For people: what ran out."""
    advice: str
    of_allocator: bool = False
    """It is one after all, of which no figures are left."""


KINDS = (
    Elsewhere(
        "nccl",
        re.compile(
            r"NCCL.{0,400}(?:out of memory|Failed to CUDA (?:calloc|malloc))|Cuda failure (?:2 )?'out of memory'"
        ),
        "NCCL found no GPU memory for its buffers",
        _OUTSIDE,
    ),
    Elsewhere(
        "library",
        re.compile(r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS)_(?:STATUS_)?(?:ALLOC_FAILED|INSUFFICIENT\w*)"),
        "a CUDA library (cuBLAS, cuDNN) found no GPU memory for its workspace",
        _OUTSIDE,
    ),
    Elsewhere(
        "driver",
        re.compile(r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"),
        "the CUDA driver itself found no memory: for a context, a kernel, a graph, or pinned host memory",
        _OUTSIDE + " If it comes at once, the GPU was full before: see nvidia-smi.",
    ),
    Elsewhere(
        "driver_mapping",
        re.compile(r"CUDA driver error: out of memory"),
        "the CUDA driver could not reserve address space or map memory for a segment that can expand",
        "Where much memory is free, it is address space that ran out: with expandable_segments:True each private pool "
        "(CUDA graph, MemPool) reserves 1.125 times the GPU's memory, and a process has room for about 830 pools on "
        "an H200. Let graphs share one pool, or run without expandable_segments. Else the GPU is full: see nvidia-smi.",
    ),
    Elsewhere(
        "text_lost",
        re.compile(r"NVML_SUCCESS == r INTERNAL ASSERT FAILED"),
        "PyTorch's allocator ran out of memory, and NVML failed while the message was written (pytorch #185240)",
        "The figures are lost. Where nvidia-smi fails too, the driver is the first thing to mend.",
        of_allocator=True,
    ),
    Elsewhere(
        "cpu_allocator",
        re.compile(r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)"),
        "a CPU tensor found no host memory",
        "The GPU has no part in it: a tensor is on the CPU that was meant for the GPU, or its shape is wrong.",
    ),
    Elsewhere(
        "ray",
        re.compile(r"ray\.exceptions\.OutOfMemoryError|running low on memory"),
        "Ray ended a worker because its node's host memory ran low",
        _HOST,
    ),
    Elsewhere(
        "killed",
        re.compile(r"oom[-_]kill|Out of memory: Killed process|Memory cgroup out of memory|OOMKilled|oom_killer"),
        "the kernel's OOM killer ended a process: the host's memory, or the job's share of it, ran out",
        _HOST + " A rank that is killed so gets no traceback.",
    ),
    Elsewhere(
        "shared_memory",
        re.compile(r"insufficient shared memory \(shm\)|unable to (?:open|write to|mmap).{0,400}/(?:torch_|dev/shm)"),
        "DataLoader workers found no room in /dev/shm",
        "A container has 64 MiB there unless told otherwise (--shm-size; on Kubernetes an emptyDir of medium Memory).",
    ),
    Elsewhere(
        "host",
        re.compile(r"^\s*MemoryError\b|std::bad_alloc|\[Errno 12\] Cannot allocate memory"),
        "a process found no host memory",
        _HOST,
    ),
)
"""In this order: the first that fits a line is its kind. No pattern looks arbitrarily far from its beginning: on a line
of 64 KiB of one repeated word, or of the spaces of a progress bar, that would take minutes."""

MAPPING_FAILED = re.compile(
    r"(?P<mapping>expandable_segments: )?memory (?:allocation|mapping) failed with OOM on device \d{1,4} while trying"
)
"""torch 2.13 writes this for each refused ``cudaMalloc``, also for those that the allocator gets over by giving back
its cache; with ``expandable_segments:True`` for each refused mapping."""


def recognise(line: str) -> Optional[Elsewhere]:
    """What ``line`` speaks of, or ``None``."""
    return next((kind for kind in KINDS if kind.pattern.search(line)), None)
