"""A rank's memory outside PyTorch by kind: what NVML measured, divided by the tables that the estimate has."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from tidegauge.core.profile.rank_profile import RankProfile
from tidegauge.core.units import format_bytes
from tidegauge.estimator.gpus import CONTEXT_BYTES, nccl_bytes

MEASURED = "measured: NVML"
REST = "measured: the rest"


class OutsideKind(str, Enum):
    """What holds it."""

    CONTEXT = "CUDA context, kernels, cuBLAS, cuDNN"
    """Their workspaces are PyTorch's, and count there."""
    NCCL = "NCCL"
    OTHER = "other"
    """Beyond what the tables have: other libraries, or further process groups."""
    OTHER_PROCESSES = "other processes"
    OTHER_JOBS = "other jobs"
    """That the service watches."""


class OutsidePart(NamedTuple):
    """Named as in ``--json``."""

    name: OutsideKind
    bytes: int
    source: str
    """Measured, or expected from tables."""


def outside_parts(one: RankProfile) -> tuple[OutsidePart, ...]:
    """The first three add up to ``process_outside_bytes``; what tables expect beyond that is not there. Empty where
    NVML gave nothing."""
    parts: list[OutsidePart] = []
    left = one.process_outside_bytes
    if left is not None:
        tables = ((OutsideKind.CONTEXT, CONTEXT_BYTES), (OutsideKind.NCCL, nccl_bytes(one.world_size or 1)))
        for name, expected in tables:
            if expected:
                held = min(left, expected)
                parts.append(OutsidePart(name, held, f"expected from tables: up to {format_bytes(expected)}"))
                left -= held
        parts.append(OutsidePart(OutsideKind.OTHER, left, REST))
    unwatched = one.unwatched_processes_bytes
    if one.other_processes_bytes is not None and unwatched is not None:
        parts.append(OutsidePart(OutsideKind.OTHER_PROCESSES, unwatched, MEASURED))
        if one.other_processes_bytes > unwatched:
            parts.append(OutsidePart(OutsideKind.OTHER_JOBS, one.other_processes_bytes - unwatched, MEASURED))
    return tuple(parts)
