"""Judges whether a job fits on a GPU, with a margin for the estimate's error. Source-compatible with Python 3.9."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

from tidegauge.estimator.gpus import GpuType
from tidegauge.estimator.results import Fit, FitVerdict

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
    total_bytes = gpu.total_bytes
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
