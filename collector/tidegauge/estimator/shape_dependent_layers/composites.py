"""Operators whose C++ code takes another path on a GPU.

A tensor that pretends to be on a GPU says ``meta`` to C++, so what PyTorch would do on CUDA is written down here, each
with the function that decides in PyTorch. They are registered for the key AutogradCUDA, above the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch

from tidegauge.estimator.gpus import Target
from tidegauge.estimator.shape_dependent_layers.attention import scaled_dot_product_attention

LARGEST_INT32 = (1 << 31) - 1
MAX_CUDNN_SPATIAL_TRAINING = 880_801
MAX_CUDNN_SPATIAL_EVALUATION = 65_535
ONE_KERNEL = ("silu_backward", "mish_backward")
"""Made of other operators where a device has no kernel of its own, as CUDA in a build of PyTorch for the CPU."""


def kernels(target: Target) -> dict[str, Callable[..., Any]]:
    """Kernels by operator."""
    return {
        "scaled_dot_product_attention": partial(scaled_dot_product_attention, target),
        "dropout": _dropout,
        "_batch_norm_impl_index": _batch_norm,
        "rms_norm": _rms_norm,
        **{f"{name}.int": _softmax(name) for name in ("softmax", "log_softmax")},
        **{name: _one_kernel(name) for name in ONE_KERNEL},
    }


def _one_kernel(name: str) -> Callable[..., Any]:
    """The operator as one kernel, as on CUDA."""
    operator = getattr(torch.ops.aten, name).default

    def kernel(*args: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*args)

    return kernel


def _softmax(name: str) -> Callable[..., Any]:
    """``softmax`` in SoftMax.cpp: one kernel makes float32 of float16, without a copy of the input in that type."""
    operator, kernel = getattr(torch.ops.aten, name).int, getattr(torch.ops.aten, f"_{name}").default

    def run(value: Any, dim: int, dtype: Optional[torch.dtype] = None) -> Any:
        if value.dtype is torch.float16 and dtype is torch.float32:
            return kernel(value, dim, True)
        return operator.decompose(value, dim, dtype)

    return run


def _dropout(value: Any, p: float, train: bool) -> Any:
    """``is_fused_kernel_acceptable`` in Dropout.cpp: one kernel, and a mask of a byte an element."""
    if not train or p == 0 or value.numel() == 0:
        return value
    if p == 1:
        return value.mul(torch.zeros((), dtype=value.dtype, device=value.device))
    return torch.ops.aten.native_dropout(value, p, train)[0]


def _batch_norm(
    value: Any,
    weight: Optional[Any],
    bias: Optional[Any],
    running_mean: Optional[Any],
    running_var: Optional[Any],
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool,
) -> tuple[Any, Any, Any, Any, int]:
    """``_batch_norm_impl_index`` in Normalization.cpp."""
    if cudnn_enabled and _takes_cudnn(value, weight, bias, running_mean, running_var, training):
        layout = _suggested_layout(value)
        results = torch.ops.aten.cudnn_batch_norm(
            value.contiguous(memory_format=layout), weight, bias, running_mean, running_var, training, momentum, eps
        )
        return (*results, 1)
    results = torch.ops.aten.native_batch_norm(value, weight, bias, running_mean, running_var, training, momentum, eps)
    return (*results, torch.empty(0, dtype=torch.uint8, device=value.device), 0)


def _takes_cudnn(value: Any, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool) -> bool:
    """``_select_batch_norm_backend`` there."""
    statistics = (running_mean is None) + (running_var is None)
    most = MAX_CUDNN_SPATIAL_TRAINING if training else MAX_CUDNN_SPATIAL_EVALUATION
    return (
        weight is not None and bias is not None
        and torch.bfloat16 not in (value.dtype, weight.dtype)
        and (value.dtype is not torch.float16 or weight.dtype is torch.float32)
        and (statistics == 0 or (statistics == 2 and training))
        and value.dim() >= 3 and value.shape[0] <= most and value.numel() < LARGEST_INT32
    )  # fmt: skip


def _suggested_layout(value: Any) -> Any:
    """``Tensor::suggest_memory_format``."""
    if value.dim() == 4 and value.is_contiguous(memory_format=torch.channels_last) and not value.is_contiguous():
        return torch.channels_last
    if value.dim() == 5 and value.is_contiguous(memory_format=torch.channels_last_3d) and not value.is_contiguous():
        return torch.channels_last_3d
    return torch.contiguous_format


def _rms_norm(value: Any, shape: list[int], weight: Optional[Any] = None, eps: Optional[float] = None) -> Any:
    """``rms_norm`` in layer_norm.cpp: one kernel where the types agree."""
    if eps is None:
        eps = torch.finfo(value.dtype).eps
    return torch.ops.aten._fused_rms_norm(value, shape, weight, eps)[0]
