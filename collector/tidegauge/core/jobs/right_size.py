"""What ended jobs needed, beside what they had: how full their GPUs were, and what would have done. Pure.

A job *needs* on each of its GPUs what its fullest rank held at its highest: memory that PyTorch reserved, and memory of
its process outside PyTorch, for which there is room where it is not known. Ranks that held less are counted as if they
had held that much, so waste is never told too high.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple, Optional

from tidegauge.core.units import format_bytes

MIN_MARGIN = 0.10
"""Of the need, above it."""
MIN_LESS = 0.10
"""Of what it had, that a smaller GPU or part must save. A cap is a little below its share of the GPU: the share that a
job had is never advised."""
ASSUMED_OUTSIDE_BYTES = 2 << 30
"""For memory outside PyTorch that is not known: ranks with NCCL hold 1.5 GiB (``fraction.CONTEXT_BYTES``)."""
SHARES = (8, 4, 2)
"""Parts of a GPU's memory that can be had: MIG has eighths, quarters and halves; ``--gpu-share`` any."""
MIG_SLICES = {8: "1g", 4: "2g", 2: "3g"}
"""Compute slices of the MIG profile with 1/n of the memory, on GPUs that have seven (NVIDIA's MIG User Guide)."""
MIG_GPU_GB = (40, 80, 94, 141, 180)
"""The memory on the label of these GPUs: A100, H100, H200, B200. Of 96 GB there are some with seven slices and some
with four, and 24 GB tell an A30 from no other."""
MIG_PART = 0.96
"""Of 1/n of the GPU's memory that a profile really has: 9.5 GiB of 79.1 are the least (``nvidia-smi mig -lgip``)."""
MAX_LABEL_EXCESS = 0.035
"""Of the label, that the driver keeps for itself; GB are read as GiB."""
MIN_RUN_S = 600.0
"""A shorter run tells nothing of what its job needs."""
MIN_RUNS = 3
"""Of one job, before its own runs show a margin."""


class UsageBy(str, Enum):
    """What runs are summed up by."""

    JOB = "job"
    """Runs of one user with one job name."""
    USER = "user"
    ACCOUNT = "account"
    PARTITION = "partition"
    NAMESPACE = "namespace"


class LeftOut(NamedTuple):
    """Runs that are not summed up: those of any of these."""

    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Names of jobs, in which ``*`` stands for any characters."""


NOTHING = LeftOut()


class GpuUsage(NamedTuple):
    """Runs of at least ``MIN_RUN_S``, summed up. Byte-seconds are of all GPUs."""

    name: str
    """The job's name, the user, …; empty: it has none."""
    user_name: str
    """Empty where the sum is over several users."""
    runs: int
    ooms: int
    """Runs that met an out-of-memory error, whether or not they survived it, shorter ones, too."""
    gpus: int
    """Of the largest run."""
    gpu_seconds: float
    had_byte_seconds: float
    """Memory that the GPUs had, or that the runs' caps allowed, while the runs lasted."""
    needed_byte_seconds: float
    limit_bytes: int
    """Of the largest GPU, or cap."""
    highest_bytes: int
    """The need of the run that needed most; ``mean_bytes`` is the mean over runs."""
    mean_bytes: float
    completed: int = 0
    """Runs that ended without an error."""
    gpu_bytes: int = 0
    """Of the largest GPU, whatever the cap; 0: not known."""
    assumed_bytes: int = 0
    """The part of the needs that is ``ASSUMED_OUTSIDE_BYTES``; 0: memory outside PyTorch is known of every run."""
    highest_of_all_bytes: int = 0
    """The highest need of any run, shorter ones, too."""

    @classmethod
    def of_run(
        cls, *, gpus: int, ran_s: float, limit_bytes: int, gpu_bytes: int, reserved_bytes: int,
        nontorch_bytes: Optional[int],
    ) -> GpuUsage:  # fmt: skip
        """One run without an out-of-memory error: what its fullest rank needed, on each of its GPUs."""
        gpu_seconds = gpus * ran_s
        need_bytes = reserved_bytes + outside_bytes(nontorch_bytes)
        return cls(
            name="", user_name="", runs=1, ooms=0, gpus=gpus, gpu_seconds=gpu_seconds,
            had_byte_seconds=gpu_seconds * limit_bytes, needed_byte_seconds=gpu_seconds * need_bytes,
            limit_bytes=limit_bytes, highest_bytes=need_bytes, mean_bytes=need_bytes, gpu_bytes=gpu_bytes,
            assumed_bytes=need_bytes - reserved_bytes if nontorch_bytes is None else 0,
        )  # fmt: skip

    @property
    def unused_byte_seconds(self) -> float:
        return max(self.had_byte_seconds - self.needed_byte_seconds, 0.0)

    @property
    def safe_bytes(self) -> int:
        """What the next run should have: as far above the highest need as that was above the mean, and at least
        ``MIN_MARGIN``."""
        swing = self.highest_bytes - self.mean_bytes if self.runs >= MIN_RUNS else 0.0
        return int(self.highest_bytes + max(MIN_MARGIN * self.highest_bytes, swing))

    @property
    def shared_bytes(self) -> Optional[int]:
        """The most that the next run may take of a GPU that it shares, if it states nothing; ``None``: no limit, as too
        little is known, or a run ran out of memory."""
        if self.completed < MIN_RUNS or self.ooms or not self.highest_bytes:
            return None
        return self._replace(highest_bytes=max(self.highest_bytes, self.highest_of_all_bytes)).safe_bytes

    @property
    def share(self) -> Optional[int]:
        """``n``, if 1/n of the GPU's memory is enough, and less than what the runs had; ``None``: no such part is, or a
        run ran out of memory."""
        if self.ooms:
            return None
        fits = (share for share in SHARES if self.safe_bytes * share <= self.gpu_bytes)
        return next((share for share in fits if self._is_less(self.gpu_bytes / share)), None)

    @property
    def mig_profile(self) -> Optional[str]:
        """The name of a MIG profile with ``share`` of the GPU's memory: ``3g.40gb``; ``None``: it has too little, or
        the GPU is none of those whose profiles are known."""
        share, gib = self.share, self.gpu_bytes / (1 << 30)
        if share is None or self.safe_bytes * share > MIG_PART * self.gpu_bytes:
            return None
        labels = (label for label in MIG_GPU_GB if (1 - MAX_LABEL_EXCESS) * label <= gib <= label)
        label = next(labels, None)
        return None if label is None else f"{MIG_SLICES[share]}.{int(label / share + 0.5)}gb"

    @property
    def fraction(self) -> Optional[float]:
        """A memory fraction with the margin, if that is less than what the runs had; ``None`` as for ``share``."""
        if self.ooms or not self.gpu_bytes or not self._is_less(self.safe_bytes):
            return None
        return math.ceil(100 * self.safe_bytes / self.gpu_bytes) / 100

    def smaller_gpu(self, sizes: Iterable[int]) -> Optional[int]:
        """The smallest of ``sizes`` (bytes of the cluster's GPUs) that is enough and smaller than what the runs had."""
        fits = [size for size in sizes if self.safe_bytes <= size and self._is_less(size)]
        return min(fits, default=None) if not self.ooms else None

    def _is_less(self, size: float) -> bool:
        return size < (1 - MIN_LESS) * self.limit_bytes


def outside_bytes(nontorch_bytes: Optional[int]) -> int:
    """The part of a run's need that is memory outside PyTorch, or room for it."""
    return ASSUMED_OUTSIDE_BYTES if nontorch_bytes is None else nontorch_bytes


class SizedUsage(NamedTuple):
    """Runs, and what the next one could ask for."""

    usage: GpuUsage
    safe_bytes: int
    """As ``GpuUsage.safe_bytes``; so is ``share``."""
    share: Optional[int]
    advice: Optional[str]
    """A sentence; ``None``: what they had is right, or too little is known."""
    shared_bytes: Optional[int] = None
    """As ``GpuUsage.shared_bytes``; so are the next two."""
    mig_profile: Optional[str] = None
    fraction: Optional[float] = None

    @classmethod
    def of(cls, usage: GpuUsage, sizes: Iterable[int]) -> SizedUsage:
        return cls(
            usage, usage.safe_bytes, usage.share, advice(usage, sizes), usage.shared_bytes, usage.mig_profile,
            usage.fraction,
        )  # fmt: skip


def advice(usage: GpuUsage, sizes: Iterable[int] = ()) -> Optional[str]:
    """One sentence on what the next run could ask for; ``None``: what it had is right, or too little is known.

    ``sizes``: bytes of the GPUs that the cluster has.
    """
    share, smaller = usage.share, usage.smaller_gpu(sizes)
    if share is None and smaller is None:
        return None
    gpus = f"{usage.gpus} × " if usage.gpus > 1 else ""
    each = " each" if usage.gpus > 1 else ""
    had = f"{gpus}{format_bytes(usage.limit_bytes)}"
    if usage.limit_bytes < usage.gpu_bytes:
        had += f" of a GPU of {format_bytes(usage.gpu_bytes)}"
    need = format_bytes(usage.highest_bytes)
    if usage.assumed_bytes:
        need += f" ({format_bytes(usage.assumed_bytes)} of it assumed for memory outside PyTorch)"
    runs = "the last run" if usage.runs == 1 else f"{usage.runs} runs"
    could = [f"a GPU of {format_bytes(smaller)}"] if smaller is not None else []
    if share is not None:
        could.append(
            f"1/{share} of this GPU ({' '.join(filter(None, ('MIG', usage.mig_profile)))}, or --gpu-share 1/{share})"
        )
    return (
        f"had {had}, needed {need}{each} at most in {runs}; with a margin "
        f"({format_bytes(usage.safe_bytes)}) {' or '.join(could)} would do"
    )
