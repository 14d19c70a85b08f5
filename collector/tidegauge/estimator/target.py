"""The GPU that a job is estimated for: the properties that kernels and the allocator depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


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
