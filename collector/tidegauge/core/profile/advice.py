"""What would make the peak of a recorded training step smaller, and what room it leaves: values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Optional


class Measure(str, Enum):
    """A change to a job that takes less memory."""

    CHECKPOINTING = "activation checkpointing"
    ZERO_GRAD_EARLIER = "gradients freed before the forward pass"
    OPTIMIZER_IN_BACKWARD = "optimizer in the backward pass"
    SHARDED_STATE = "sharded optimizer state (ZeRO-1)"
    FULLY_SHARDED = "everything sharded (FSDP2)"
    EIGHT_BIT_STATE = "optimizer state in 8 bit"
    HALF_STATE = "optimizer state in bf16"
    HALF_ACTIVATIONS = "activations in bf16"
    ACCUMULATION = "half the batch, twice"
    SMALLER_EVALUATION = "half the evaluation's batch"
    CHUNKED_LOSS = "loss in chunks"
    INFERENCE_MODE = "no activations kept in inference"
    SMALLER_CACHE = "cache of keys and values in half the bits"
    SMALLER_WEIGHTS = "weights in half the bits"
    HALF_BATCH = "half the batch"
    ALLOCATOR_SETTINGS = "allocator settings"


class AdvisedMeasure(NamedTuple):
    """One measure, applied to the recorded steps."""

    measure: Measure
    peak_bytes: int
    """The predicted peak of the whole recording: it may lie elsewhere than today's."""
    saved_bytes: int
    """Today's peak less the predicted one; never negative."""
    action: str
    """What to do, for people: ``Checkpoint the 12 blocks (model.py:88)``. May hold names from the job."""
    price: str
    """What it costs, for people."""
    condition: Optional[str] = None
    """When it applies, where the recording does not show that it does."""
    is_reserved: bool = False
    """Whether both figures are of reserved memory; else of allocated."""
    is_bound: bool = False
    """Whether the saving is the most there can be; else what is expected."""


class BatchRoom(NamedTuple):
    """How much larger the batch can be, in times of today's, if what grows with it does so evenly."""

    limit_bytes: int
    """Memory that the device has for PyTorch: without CUDA context."""
    safe_times: float
    """Reserved memory fits, if it stays in today's ratio to allocated memory."""
    border_times: float
    """Allocated memory alone fits; a larger batch does not."""
    growing_bytes: int
    """What grows with the batch, when the border is reached: at today's batch."""


class FittingCard(NamedTuple):
    """A GPU, or a slice of one, that today's reserved memory fits on."""

    name: str
    total_bytes: int
    """Without CUDA context."""


@dataclass(frozen=True)
class StepAdvice:
    """What would help one rank."""

    peak_bytes: int
    """Allocated, today."""
    reserved_bytes: int
    measures: tuple[AdvisedMeasure, ...]
    """The largest saving first; each by itself: savings of several do not add up."""
    room: Optional[BatchRoom] = None
    """``None``: no limit is known, or nothing grows with the batch."""
    cards: tuple[FittingCard, ...] = ()
    """That would do, the smallest first."""
