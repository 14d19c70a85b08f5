"""GPU types: the memory that a program can have of each, and the part that other libraries take of it.

Bytes throughout. What was measured and what is quoted is said with each figure. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional


@dataclass(frozen=True)
class Target:
    """GPU properties, as from ``torch.cuda.get_device_properties``."""

    name: str
    total_bytes: int
    """``total_memory``: what the driver gives out, less than the card's label says."""
    capability: tuple[int, int]
    """CUDA compute capability: decides which attention kernel and which workspace PyTorch takes."""
    multiprocessors: int
    """``multi_processor_count``: some kernels make one partial result for each."""
    torch_version: Optional[str] = None
    """Of the job's PyTorch, where another one runs the estimate; ``None``: the same."""
    cudnn_attention_first: bool = True
    """On Hopper and data-centre Blackwell, where the installed cuDNN is 9.15.1 or newer (PyTorch 2.11 for CUDA 13)."""


H200 = Target("NVIDIA H200", 150_109_880_320, (9, 0), 132)
"""As PyTorch 2.11 reported it with driver 580; the recordings were made on it."""

GIB = 1 << 30
MIB = 1 << 20


class SizeSource(str, Enum):
    """The source of a figure."""

    MEASURED = "measured"
    """By us, on that type."""
    QUOTED = "quoted"
    """As PyTorch's own out-of-memory messages of other people's jobs name it ("has a total capacity of")."""


class GpuType(NamedTuple):
    """A GPU type of a cluster."""

    name: str
    """As ``--gpu`` takes it."""
    target: Target
    """``total_bytes`` is what the driver leaves of the memory on the label, ECC taken off."""
    source: SizeSource
    """Of ``total_bytes``."""


def _quoted(name: str, total_gib: float, capability: tuple[int, int], multiprocessors: int) -> GpuType:
    return GpuType(name, Target(name, int(total_gib * GIB), capability, multiprocessors), SizeSource.QUOTED)


GPU_TYPES = (
    _quoted("b200", 178.35, (10, 0), 148),
    GpuType("h200", H200, SizeSource.MEASURED),
    _quoted("a100-80", 79.14, (8, 0), 108),
    _quoted("h100-80", 79.10, (9, 0), 132),
    _quoted("l40s", 44.40, (8, 9), 142),
    _quoted("a100-40", 39.38, (8, 0), 108),
    _quoted("v100-32", 31.73, (7, 0), 80),
    _quoted("rtx-3090", 23.68, (8, 6), 82),
    _quoted("rtx-4090", 23.61, (8, 9), 128),
    _quoted("a10g", 22.03, (8, 6), 80),
    _quoted("l4", 22.03, (8, 9), 58),
    _quoted("v100-16", 15.77, (7, 0), 80),
    _quoted("t4", 14.56, (7, 5), 40),
)
"""Largest first. A type shows some hundredths of a GiB more or less with driver and ECC: rather the least reported.

That an H100 and an L40S have this much is common knowledge, not a message of ours that names the type.
"""

MIG_SLICES = (
    ("3g.40gb", int(39.25 * GIB)),
    ("2g.20gb", int(19.5 * GIB)),
    ("1g.10gb", int(9.5 * GIB)),
    ("1g.5gb", int(4.75 * GIB)),
)
"""Slices of an A100 or H100, as ``nvidia-smi mig -lgip`` names them, with the lesser size of the two types."""

CONTEXT_BYTES = 762 * MIB
"""NVML's bytes of the process minus ``reserved``: CUDA context, loaded kernels, cuBLAS, cuDNN.

The most of 258 training jobs on an H200 (driver 580, CUDA 13.0, torch 2.11): 630 to 762 MiB. Other types and drivers
were not measured; public reports name 300 to 600 MiB, so the figure errs on the side of "does not fit".
"""
FIRST_COMMUNICATOR_BYTES = 844 * MIB
"""What a rank holds more once NCCL has made its first communicator: 1,586 MiB against 742 MiB without.

Measured on two H200s of one host (NCCL 2.28). Reports from larger jobs go from 0.5 to several GiB a rank.
"""
FURTHER_COMMUNICATOR_BYTES = 486 * MIB
"""Each further communicator (process group that has communicated): 14,552 MiB for 30 of them, same machine."""


def find_gpu(name: str) -> GpuType:
    """The type called ``name``, upper or lower case. Raises ``ValueError`` that lists the names."""
    for gpu in GPU_TYPES:
        if gpu.name == name.lower():
            return gpu
    raise ValueError(f"unknown GPU {name!r}: choose one of {', '.join(g.name for g in GPU_TYPES)}")


def nccl_bytes(world_size: int, *, communicators: int = 1) -> int:
    """NCCL's memory in a rank of a job of ``world_size`` ranks; none for a job of one."""
    if world_size < 2 or communicators < 1:
        return 0
    return FIRST_COMMUNICATOR_BYTES + (communicators - 1) * FURTHER_COMMUNICATOR_BYTES
