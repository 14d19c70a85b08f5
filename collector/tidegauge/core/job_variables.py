"""Environment variables by which launchers, schedulers' adapters and the probe speak of one job: each name once.

Source-compatible with Python 3.9: the probe imports this inside the training process.
"""

from __future__ import annotations

ATTEMPT_VARIABLE = "TIDEGAUGE_ATTEMPT"
"""How often the job was started again before."""
FRACTION_VARIABLE = "TIDEGAUGE_MEMORY_FRACTION"
"""Part of each device that PyTorch's allocator may reserve, above 0 and at most 1."""
SHARE_VARIABLE = "TIDEGAUGE_GPU_SHARE"
"""Part of each GPU that the job asked for, above 0 and at most 1. The probe only records it."""
