"""Names of the environment variables that launchers, scheduler adapters and the probe use to describe a job.

The probe imports this inside the training process.
"""

from __future__ import annotations

from typing import Optional

ATTEMPT_VARIABLE = "TIDEGAUGE_ATTEMPT"
"""How often the job was started again before."""
FRACTION_VARIABLE = "TIDEGAUGE_MEMORY_FRACTION"
"""Part of each device that PyTorch's allocator may reserve, above 0 and at most 1."""
SHARE_VARIABLE = "TIDEGAUGE_GPU_SHARE"
"""Part of each GPU that the job asked for, above 0 and at most 1. The probe only records it."""
SHARED_BYTES_VARIABLE = "TIDEGAUGE_SHARED_GPU_BYTES"
"""Bytes of each GPU that PyTorch's allocator may reserve where the job has a share of it and states no fraction: what
earlier runs of the job needed, with a margin."""
KEEPER_VARIABLE = "TIDEGAUGE_KEEPER"
"""The process of the ``tidegauge run`` that keeps this job, as its files are named: ``<pid>-<start ticks>``."""
EXPLAIN_OOM_VARIABLE = "TIDEGAUGE_EXPLAIN_OOM"
"""``off``: at an out-of-memory error the probe takes no snapshot and says nothing."""

IN_JOBS = frozenset(
    f"TIDEGAUGE_{name}"
    for name in (
        "PROFILE", "MEMORY_FRACTION", "GPU_SHARE", "SHARED_GPU_BYTES", "CHECKPOINT_SIGNAL", "CHECKPOINT_PATH",
        "JOB_ID", "JOB_NAME", "ATTEMPT", "KEEPER", "SETTINGS_TOLD", "EXPLAIN_OOM",
    )
)  # fmt: skip
"""All that launchers and plugins may put into the environment of a job. Commands that are started there have them, too,
and must not take them for settings of the service."""


def parse_fraction(text: str) -> Optional[float]:
    """A number above 0 and at most 1, or ``None``. 0 would refuse every allocation, which nobody means."""
    try:
        fraction = float(text)
    except ValueError:
        return None
    return fraction if 0.0 < fraction <= 1.0 else None
