"""Words of a memory profile: categories of memory, and phases of a training step.

They are those of ``tidegauge estimate``, so that an estimate and the profile of the same job can be put side by side.
"""

from __future__ import annotations

from enum import Enum


class Category(str, Enum):
    """The purpose of a block of memory."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    """``Module.buffers()``."""
    GRADIENTS = "gradients"
    OPTIMIZER_STATE = "optimizer state"
    ACTIVATIONS = "activations"
    """Made in the forward pass and alive when the backward pass began, or made again there by checkpointing."""
    INPUTS = "inputs"
    """Made before the forward pass of a step: a batch, mostly."""
    TEMPORARIES = "temporaries"
    """Freed in the phase that they were made in."""
    COMMUNICATION = "communication"
    """Buffers of ``torch.distributed``, FSDP's and DDP's."""
    WORKSPACES = "workspaces"
    """Asked for by a library's kernels, of cuBLAS for one."""
    CUDA_GRAPHS = "CUDA graphs"
    """In private pools."""
    OTHER = "other"
    """Made by a line that is known, for a purpose that is not."""
    UNKNOWN = "unknown"
    """Made before the recording, or without a stack."""
    ROUNDING = "rounding"
    """Allocated beyond what was asked for: to 512 bytes, and in blocks that are not split."""


class StepPhase(str, Enum):
    """The phase of a training step."""

    INPUT = "input"
    """Between the optimizer and the next forward pass."""
    FORWARD = "forward"
    """To the beginning of the backward pass; the loss belongs to it."""
    BACKWARD = "backward"
    RECOMPUTATION = "recomputation"
    """A forward pass that activation checkpointing does again within the backward pass."""
    BEFORE_OPTIMIZER = "before optimizer"
    """Between backward pass and optimizer: gradient clipping, for one."""
    OPTIMIZER = "optimizer"
    UNKNOWN = "unknown"
    """At the beginning of a recording, before the first stack that tells."""

    @property
    def is_backward(self) -> bool:
        """Whether it is part of a backward pass."""
        return self in (StepPhase.BACKWARD, StepPhase.RECOMPUTATION)
