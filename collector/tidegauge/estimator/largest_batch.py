"""Judges whether a job fits on a GPU, with a margin for the error, and searches the largest batch that does.

Source-compatible with Python 3.9.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Optional

from tidegauge.estimator.gpus import GpuType
from tidegauge.estimator.results import Fit, FitVerdict, LargestBatch

ERROR_SHARE = 0.10
"""By how much a job may need more than was estimated before "fits" was wrong, as a share of the estimate.

The bound on the worst relative error of peak reserved over the recorded H200 peaks; ``bench/estimate.py`` shows how far
the errors stay below it. A job is told to fit only where it still would with this much more.
"""


def fitting_bytes(total_bytes: int) -> int:
    """The largest estimate that is told to fit into ``total_bytes``."""
    return int(total_bytes / (1 + ERROR_SHARE))


def fit(device_bytes: int, gpu: GpuType, retries_within: Callable[[int], Optional[int]]) -> Fit:
    """The verdict for one type of GPU.

    ``retries_within(bytes)`` runs the job's requests again on a device that has no more than ``bytes`` and says how
    often the allocator would have to give back its cache; ``None`` where it runs out of memory. It is asked only
    where the job does not fit as it is.
    """
    total_bytes = gpu.target.total_bytes
    margin = 1 - device_bytes / total_bytes
    verdict, note = FitVerdict.TOO_CLOSE, ""
    if device_bytes <= fitting_bytes(total_bytes):
        verdict = FitVerdict.FITS
    elif device_bytes * (1 - ERROR_SHARE) > total_bytes:
        retries = retries_within(total_bytes)
        if retries is None:
            verdict = FitVerdict.DOES_NOT_FIT
        else:
            note = f"only with {retries} releases of the allocator cache in these steps, which is slow"
    return Fit(gpu.name, total_bytes, verdict, margin, gpu.source.value, note)


MAX_TRIALS = 12
"""Runs of a step for one type of GPU. Memory is nearly a straight line over the batch: four or five are usual."""
MAX_BATCH = 1 << 20


class BatchRuns:
    """Device memory by batch size: runs each size once, and at most ``MAX_TRIALS`` beyond those given."""

    def __init__(self, device_bytes: Callable[[int], int], known: Mapping[int, int]) -> None:
        self.known = dict(known)
        self._device_bytes = device_bytes
        self.spent = 0

    def __call__(self, batch_size: int) -> int:
        if batch_size not in self.known:
            self.spent += 1
            self.known[batch_size] = self._device_bytes(batch_size)
        return self.known[batch_size]


def largest_batch(runs: BatchRuns, gpu: GpuType) -> LargestBatch:
    """The largest batch that is told to fit on ``gpu``: it was run, and where runs were left, so was the next one.

    The next one may well run: it only fits with less than ``ERROR_SHARE`` in reserve.
    ``runs.known`` needs an entry to start from.
    """
    room_bytes = fitting_bytes(gpu.target.total_bytes)
    while True:
        fits = max((size for size, needed in runs.known.items() if needed <= room_bytes), default=0)
        too_much = min((size for size in runs.known if size > fits), default=MAX_BATCH + 1)
        if too_much - fits <= 1 or runs.spent >= MAX_TRIALS:
            return LargestBatch(
                gpu.name, fits, runs.known.get(fits), tried=True, border_batch_size=_border(runs.known, gpu, fits)
            )
        runs(_next_guess(runs, room_bytes, fits, too_much))


def by_the_line(known: Mapping[int, int], gpu: GpuType) -> LargestBatch:
    """The same from the straight line through the two largest batches of ``known``, without another run.

    Raises ``ValueError`` where there are fewer than two.
    """
    size = _end_of_line(known, fitting_bytes(gpu.target.total_bytes))
    if size is None:
        raise ValueError("a line needs two batch sizes that were run")
    start, slope = _line(known)
    needed_bytes = round(start + slope * size) if size else None
    return LargestBatch(gpu.name, size, needed_bytes, tried=size in known, border_batch_size=_border(known, gpu, size))


def _border(known: Mapping[int, int], gpu: GpuType, fits: int) -> int:
    """The largest batch with nothing in reserve: by the line, or, with one batch known, what was run."""
    room_bytes = gpu.target.total_bytes
    border = _end_of_line(known, room_bytes)
    if border is None:
        border = max((size for size, needed in known.items() if needed <= room_bytes), default=0)
    return max(border, fits)


def _next_guess(runs: BatchRuns, room_bytes: int, fits: int, too_much: int) -> int:
    """The next batch to run, strictly between the two: by the line, else doubled, else in the middle."""
    guess = _end_of_line(runs.known, room_bytes)
    if guess is None:
        guess = fits * 2 if fits else too_much // 2
    elif runs.spent > MAX_TRIALS // 2:
        # The line misleads (steps in the sizes of segments, kernels that change): halving always ends.
        guess = (fits + too_much) // 2 if too_much <= MAX_BATCH else fits * 2
    return max(fits + 1, min(guess, too_much - 1))


def _line(known: Mapping[int, int]) -> tuple[float, float]:
    """Bytes at a batch of 0 and for each further sample, through the two largest batches that were run."""
    small, large = sorted(known)[-2:]
    slope = (known[large] - known[small]) / (large - small)
    return known[large] - slope * large, slope


def _end_of_line(known: Mapping[int, int], room_bytes: int) -> Optional[int]:
    """The largest batch on the line within ``room_bytes``; ``None`` where two points are not known."""
    if len(known) < 2:
        return None
    start, slope = _line(known)
    if slope <= 0:
        return MAX_BATCH if start <= room_bytes else 0
    return max(0, min(MAX_BATCH, int((room_bytes - start) // slope)))
