"""Scratch memory of kernels by operator: workspaces and partial results, which they allocate besides their results.

``scratch`` looks an operator up; a module here knows one family of operators. Figures are measured
(``bench/gpu_peaks.py``, ``bench/gpu_workspaces.py``) or read from PyTorch's source, and each says which.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegauge.estimator.kernels import attention, convolutions, indexing, matmul, norms, others, recurrent, reductions
from tidegauge.estimator.kernels.calls import NOTHING, OpCall, Scratch

_KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    **attention.KERNELS,
    **convolutions.KERNELS,
    **indexing.KERNELS,
    **matmul.KERNELS,
    **norms.KERNELS,
    **others.KERNELS,
    **recurrent.KERNELS,
    **reductions.KERNELS,
}


def scratch(call: OpCall) -> Scratch:
    """The scratch memory of this call's kernels; ``NOTHING`` for operators that take none or are not known."""
    kernel = _KERNELS.get(call.name)
    if kernel is None or not _computes(call.outputs):
        return NOTHING
    return kernel(call)


def _computes(outputs: tuple[Any, ...]) -> bool:
    """Whether the GPU has anything to do: not for operators on the CPU, or without a single value."""
    return any(one is not None and one.device.type == "cuda" and 0 not in one.shape for one in outputs)
