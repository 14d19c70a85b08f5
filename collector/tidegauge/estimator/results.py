"""The values of an estimate, named as in ``tidegauge estimate --json``.

Bytes throughout. Source-compatible with Python 3.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.units import format_bytes

STRATEGIES = ("none", "ddp", "fsdp2")
"""What can be done to a job's model on several ranks."""


class FitVerdict(str, Enum):
    """The verdict on whether a job fits."""

    FITS = "fits"
    TOO_CLOSE = "too close to say"
    DOES_NOT_FIT = "does not fit"


class Breakdown(NamedTuple):
    """The parts of device memory at the peak of allocated memory. They add up to ``device_bytes``."""

    parameters: int
    buffers: int
    """Of modules: running statistics of batch norm, masks, position tables."""
    gradients: int
    optimizer_state: int
    activations: int
    """Kept from forward for backward."""
    temporaries: int
    """Live for an operation or two: results on their way, copies that an optimizer makes."""
    workspaces: int
    """Of cuBLAS, cuDNN and other kernels, taken from PyTorch's allocator."""
    inputs: int
    """Batches."""
    other: int
    """What the program holds for uses that are not known: copies of weights, DDP's buckets, losses that are kept."""
    allocator: int
    """Peak reserved minus all of the above: rounding, and free blocks that nothing fitted into (fragmentation)."""
    context: int
    """CUDA context and loaded kernels: a table, not a model."""
    nccl: int
    """NCCL's buffers: a table, not a model."""


class StepPeak(NamedTuple):
    """The memory of one training step."""

    step: int
    """From 1. The first one makes the optimizer's state, the second one is the first that has it from the start."""
    allocated_bytes: int
    """The highest within the step; what came before the first one belongs to that one."""
    reserved_bytes: int
    """The highest until the end of the step."""


class Fit(NamedTuple):
    """The fit of the job on one GPU type."""

    gpu: str
    total_bytes: int
    verdict: FitVerdict
    margin: float
    """Free share of the GPU; negative where the estimate is above it."""
    total_source: str
    """"measured" or "quoted": where ``total_bytes`` is from."""
    note: str = ""


class Saving(NamedTuple):
    """The saving by one change of the job, from running it again with the change."""

    change: str
    device_bytes: Optional[int]
    """With the change; ``None`` where it was not tried."""
    saved_bytes: Optional[int]
    """Negative where the change costs memory."""
    note: str = ""
    """Why it was not tried, or why it saves less than peak allocated memory falls by."""


def saving_note(saved_bytes: int, lower_bytes: int) -> str:
    """The note on a change that saves ``saved_bytes`` of the device while peak allocated falls by ``lower_bytes``."""
    if lower_bytes <= 0 or saved_bytes >= lower_bytes / 2:
        return ""
    return f"peak allocated falls by {format_bytes(lower_bytes)}, but the allocator reserves as much: fragmentation"


class LargestBatch(NamedTuple):
    """The largest batch estimated to fit on a GPU type."""

    gpu: str
    batch_size: int
    """0 where not even one fits."""
    device_bytes: Optional[int]
    """Of a step with that batch; ``None`` where ``batch_size`` is 0."""
    tried: bool
    """Whether a step with that batch was run; otherwise it follows from the line through smaller ones."""
    border_batch_size: Optional[int] = None
    """The largest batch on the line through those that were run if nothing is kept in reserve for the error."""


class ClosedForm(NamedTuple):
    """A textbook formula, and the part of the estimate that it covers."""

    name: str
    formula: str
    bytes: int
    of: str
    """The part of the estimate that it is held against."""
    estimate_bytes: int


@dataclass(frozen=True)
class Estimate:
    """The answer of ``tidegauge estimate``."""

    peak_allocated_bytes: int
    """As ``torch.cuda.max_memory_allocated()`` would say after the last step."""
    peak_reserved_bytes: int
    """As ``torch.cuda.max_memory_reserved()``."""
    device_bytes: int
    """As ``nvidia-smi`` would show for the process: reserved, CUDA context, NCCL. Per rank."""
    breakdown: Breakdown
    peak_at: str
    """When allocated memory is at its peak: step, phase, module and operation, as far as known."""
    steps: tuple[StepPeak, ...]
    parameters: int
    """How many numbers the model has; of a sharded one, over all ranks."""
    world_size: int
    strategy: str
    """"none", "ddp", "fsdp2" or "own" (FUNCTION sets up its process group itself)."""
    alloc_conf: str
    """The allocator settings that the replay ran under."""
    torch_version: str
    """Of the job: decides the allocator's choice among equal blocks, and which attention kernel runs."""
    fits: tuple[Fit, ...]
    savings: tuple[Saving, ...]
    largest_batches: tuple[LargestBatch, ...]
    batch_note: str
    """Why there is no largest batch, or what it rests on."""
    closed_forms: tuple[ClosedForm, ...]
    assumptions: tuple[str, ...]
    """What was assumed, replaced or left out on the way."""
