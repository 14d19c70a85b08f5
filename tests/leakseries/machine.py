"""A caching allocator and NVML reduced to what an observer sees of them, step by step. Deterministic by seed."""

from __future__ import annotations

import random
from typing import Any, NamedTuple, Optional

from tidegauge.core.detector import RankDetector
from tidegauge.core.verdicts import Verdict

KIB = 1024
MIB = 1024 * KIB
BLOCK = 512
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB


class Row(NamedTuple):
    """One step as a hooked probe would record it. Bytes."""

    step: int
    t: float
    allocated: int
    reserved: int
    peak_allocated: int
    nvml_process: int
    inactive_split: Optional[int] = None


def feed(
    detector: RankDetector,
    row: Row,
    *,
    limit_bytes: Optional[int] = None,
    host_bytes: Optional[int] = None,
    host_free_bytes: Optional[int] = None,
) -> Verdict:
    """One row into the detector; a negative reading of NVML is none."""
    return detector.update(
        step=row.step,
        time_s=row.t,
        allocated_bytes=row.allocated,
        reserved_bytes=row.reserved,
        nontorch_bytes=None if row.nvml_process < 0 else row.nvml_process - row.reserved,
        host_bytes=host_bytes,
        host_free_bytes=host_free_bytes,
        allocated_peak_bytes=row.peak_allocated,
        inactive_split_bytes=row.inactive_split,
        limit_bytes=limit_bytes,
    )


def rows_of(series: Any) -> list[Row]:
    """Of a series of another author: numpy columns, free pieces of segments only where that author has them."""
    columns = [series.t, series.alloc, series.resv, series.peak, series.nvml]
    if "inactive_split" in series.meta:
        columns.append(series.meta["inactive_split"])
    values = zip(*(column.tolist() for column in columns))
    return [Row(step, t, *map(int, sizes)) for step, (t, *sizes) in enumerate(values)]


class Series(NamedTuple):
    """A made-up recording and the truth about it."""

    family: str
    seed: int
    rows: list[Row]
    leak: bool
    signal: Optional[str] = None
    onset_step: Optional[int] = None
    bytes_per_step: Optional[float] = None
    """Mean rate after the onset."""
    note: bool = False
    """So slow that it does not matter."""


class Machine:
    """One rank on one GPU. A family's loop changes the public attributes and calls `end_step`."""

    def __init__(self, seed: int, *, name: str) -> None:
        self.random = random.Random(f"{name}/{seed}")
        draw = self.random
        self.rows: list[Row] = []
        self.base = int(draw.uniform(60, 900) * MIB)
        """Weights, gradients, optimizer state."""
        self.kept: float = 0
        """Bytes held on top of it: buffers, copies, leaks."""
        self.activations = self.base * draw.uniform(0.3, 2.5)
        """Of one step, freed at its end."""
        self.boundary = 0.0
        """Bytes alive at the step's boundary only."""
        self.outside = 0.0
        """Device bytes taken by other libraries, beyond the context."""
        self.stranded = 0.0
        """Reserved bytes that no request fits into."""
        self.step_s = draw.choice((0.006, 0.01, 0.02, 0.05, 0.2, 0.7))
        self.t = draw.uniform(3, 8)
        self._context = int(draw.uniform(400, 700) * MIB)
        self._reserved = 0
        self._nvml = 0
        self._nvml_due = self.t
        self._cut = draw.uniform(1.02, 1.3)
        self._jitter = draw.random() < 0.6

    def empty_cache(self) -> None:
        """What `torch.cuda.empty_cache()` leaves."""
        self._reserved = 0

    def end_step(self) -> None:
        """Finish one training step and record it."""
        draw = self.random
        step = len(self.rows)
        warm = 1.0 if step > 2 else (0.75, 0.9, 1.0)[step]
        held = self.base + int(self.kept)
        extra = self.boundary
        if self._jitter and step % 5 < 2:
            extra += MIB * (step % 5)
        allocated = _blocks(held + extra)
        peak = allocated + _blocks(self.activations * warm)
        wanted = _segments(peak * self._cut + self.stranded, small=int(self.kept))
        if wanted > self._reserved:
            self._reserved = wanted
        self.t += self.step_s * draw.uniform(0.9, 1.15)
        if step == 12:
            self.outside += 64 * MIB
        while self._nvml_due <= self.t:
            self._nvml = (
                self._context + -(-int(self.outside) // SMALL_SEGMENT) * SMALL_SEGMENT + self._seen_reserved(step)
            )
            self._nvml_due += 0.1
        self.rows.append(Row(step, round(self.t, 4), allocated, self._reserved, peak, self._nvml))

    def _seen_reserved(self, step: int) -> int:
        """NVML's last refresh may have been before this step's segments were taken."""
        stale = self.step_s < 0.1 and step > 0 and self.random.random() < 0.5
        return self.rows[-1].reserved if stale else self._reserved


def _blocks(size: float) -> int:
    return -(-int(size) // BLOCK) * BLOCK


def _segments(size: float, small: int = 0) -> int:
    """Large segments for most of it; what is kept in small pieces comes in small segments."""
    large = max(int(size) - small, 0)
    return -(-large // LARGE_SEGMENT) * LARGE_SEGMENT + -(-min(small, int(size)) // SMALL_SEGMENT) * SMALL_SEGMENT
