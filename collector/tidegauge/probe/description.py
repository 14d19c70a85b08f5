"""What a probe says of itself when it is asked (``ping``)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegauge import __version__
from tidegauge.core.job_variables import SHARE_VARIABLE
from tidegauge.probe.fraction import fraction_in

if TYPE_CHECKING:
    from tidegauge.probe.guest import Probe


def describe_probe(probe: Probe, environ: Mapping[str, str]) -> dict[str, Any]:
    """Plain values, small."""
    history = probe.evidence.history
    return {
        "pid": os.getpid(),
        "version": __version__,
        "level": probe.level,
        "watching": probe.watch is not None,
        "step": probe.steps.steps,
        "raw_steps": probe.steps.raw_steps,
        "devices": list(probe.watch.used) if probe.watch is not None else [],
        "ring": probe.ring_path,
        "limit_fraction": probe.cap.fraction,
        "gpu_share": fraction_in(environ, SHARE_VARIABLE),
        "checkpoint": probe.checkpoints.means().way,
        "recording": history.recorder().value if history is not None else None,
        "errors": probe.faults.count,
    }
