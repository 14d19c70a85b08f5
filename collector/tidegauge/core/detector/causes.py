"""Classifies growth by one short stable word."""

from __future__ import annotations

from tidegauge.core.detector.watch import Finding
from tidegauge.core.verdicts import Signal

SCALAR_BYTES_PER_STEP = 1024
"""Two of the allocator's smallest blocks (512 B)."""

CAUSES: dict[str, str] = {
    "tensors_kept": "Live tensors accumulate steadily: a list, a hook or a graph keeps what each step creates.",
    "staircase": "Live tensors accumulate in regular jumps: something is kept per epoch, evaluation or checkpoint.",
    "scalars_kept": "About one or two smallest blocks (512 B) a step: losses or metrics kept as tensors.",
    "reserved_growth": "The allocator reserves more and more although tensors do not need more: fragmentation, or CUDA "
    "graphs that each keep a private pool. Evidence shows which.",
    "outside_allocator": "Device memory grows outside PyTorch: communicators, contexts or another library.",
    "host_growth": "Host memory of the rank grows: typically a graph kept through an un-detached loss.",
}
"""Every word that `Verdict.cause` can have, and what it means."""


def cause_of(finding: Finding) -> str:
    """The word for what was found. It says how memory grows; which line does it is for the snapshots to say."""
    if finding.signal is Signal.RESERVED:
        return "reserved_growth"
    if finding.signal is Signal.NONTORCH:
        return "outside_allocator"
    if finding.signal is Signal.HOST:
        return "host_growth"
    pace = finding.per_step
    if pace is not None and pace.rate.likely <= SCALAR_BYTES_PER_STEP:
        return "scalars_kept"
    return "staircase" if finding.stepwise else "tensors_kept"
