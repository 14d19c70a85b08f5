"""Matrix products: the cuBLAS workspaces, allocated once for each thread that computes.

``getChosenWorkspaceSize`` and ``_getWorkspaceSize`` in PyTorch's CUDABlas.cpp and CublasHandlePool.cpp; measured on an
H200 with torch 2.11: 32 MiB for the handle and 1 MiB for cuBLASLt, in the training thread and again in autograd's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegauge.estimator.kernels.calls import OpCall, Scratch, Workspace, is_contiguous, layout

HANDLE_BYTES = 4096 * 1024 * 2 + 16 * 1024 * 8
"""cuBLAS's own ``:4096:2:16:8``."""
HANDLE_BYTES_SINCE_HOPPER = 32 << 20
LT_BYTES = 1 << 20
LT_TYPES = ("float32", "float64", "float16", "bfloat16")


def _handle(call: OpCall) -> Workspace:
    recent = call.target.capability[0] in (9, 10)
    thread = "autograd" if call.backward else "main"
    return Workspace(f"cublas {thread}", HANDLE_BYTES_SINCE_HOPPER if recent else HANDLE_BYTES)


def _product(call: OpCall) -> Scratch:
    return Scratch(keep=(_handle(call),))


def _sum_with_product(call: OpCall) -> Scratch:
    """``addmm``: with a bias for each column cuBLASLt adds it (``isInputCompliesAddmmCudaLt``)."""
    bias, left, right = (call.args[position] for position in range(3))
    if not _is_row_of_bias(bias, left, right):
        return _product(call)
    thread = "autograd" if call.backward else "main"
    return Scratch(keep=(_handle(call), Workspace(f"cublaslt {thread}", LT_BYTES)))


def _is_row_of_bias(bias: Any, left: Any, right: Any) -> bool:
    return (
        len(bias.shape) == 1 and bias.shape[0] == right.shape[1] and is_contiguous(layout(bias))
        and str(bias.dtype).endswith(LT_TYPES) and left.shape[0] > 1 and min(right.shape) > 1
    )  # fmt: skip


_PRODUCTS = ("mm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "_addmm_activation")
KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    **{f"aten.{name}.default": _product for name in _PRODUCTS},
    "aten.addmm.default": _sum_with_product,
}
