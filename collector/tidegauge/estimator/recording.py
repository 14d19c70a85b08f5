"""The recording of a training step without memory: its allocator events, and the purpose of each allocation."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from enum import IntEnum

from tidegauge.core.allocator.trace import Trace


class EstimateError(ValueError):
    """The job cannot run without its GPU; the text says which part of it, and what to change."""


class RecordedKind(IntEnum):
    """The purpose of an allocation."""

    OTHER = 0
    PARAMETER = 1
    BUFFER = 2
    """``Module.buffers()``."""
    GRADIENT = 3
    OPTIMIZER_STATE = 4
    ACTIVATION = 5
    """Made in the forward pass and still alive when the backward pass began, or made again there by checkpointing."""
    TEMPORARY = 6
    """Freed in the phase that it was made in."""
    WORKSPACE = 7
    """Asked for by a kernel and never seen by the program."""
    INPUT = 8
    """Made by the step outside forward, backward and optimizer: a batch, mostly."""


class Phase(IntEnum):
    """The phase of the program."""

    BUILD = 0
    INPUT = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4


@dataclass(frozen=True)
class Recording:
    """The events of a few training steps, as input for the allocator's model. The columns have one entry an event."""

    trace: Trace
    """Allocations and frees, addresses made up. Marks: ``build`` (where it ended) and ``step`` (where each ended)."""
    kinds: array[int]
    """``RecordedKind`` of the block that is made or freed, typecode ``B``."""
    phases: array[int]
    """``Phase`` of the event, typecode ``B``."""
    sites: array[int]
    """Index into ``site_names``, typecode ``i``."""
    site_names: tuple[str, ...]
    """The module and the operator, as in ``model.layers.3.mlp: aten.addmm``."""
    steps: int
    parameter_count: int
    """Elements of ``model.parameters()``, whether they are trained or not."""
    assumptions: tuple[str, ...]
    """What was assumed in place of what only a run can tell, in sentences for people."""
    torch_version: str
    """Of the PyTorch that ran the step."""
