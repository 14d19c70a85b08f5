"""Autocast for fake GPU tensors.

PyTorch's own casts ask the C++ tensor for its device and would leave them as they are. The lists are those of
``ATen/autocast_mode.h`` (torch 2.13; the same names since 2.2), the rules those of ``cached_cast`` there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Kernel = Callable[..., Any]

LOWER_PRECISION = (
    "_convolution.deprecated", "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d",
    "conv_transpose2d.input", "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul",
    "einsum", "mm", "mv", "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot",
    "_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
    "_scaled_dot_product_flash_attention", "scaled_dot_product_attention",
)  # fmt: skip
FULL_PRECISION = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm", "nuclear_norm.dim", "cosine_similarity",
    "poisson_nll_loss", "cosine_embedding_loss", "nll_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss",
    "smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss",
    "triplet_margin_loss", "multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm",
    "logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d", "_upsample_nearest_exact2d",
    "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bicubic2d_aa",
)  # fmt: skip
FULL_PRECISION_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm",
    "linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList",
)  # fmt: skip
"""These take the result's type as an argument, and keep one that the program names."""
WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip


class CastCache:
    """Casts of parameters, kept until the outermost autocast ends, as PyTorch does: they are memory of their own."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}

    def clear(self) -> None:
        self._kept.clear()

    def cast(self, tensor: Any, dtype: Any) -> Any:
        if not _eligible(tensor) or tensor.dtype is dtype:
            return tensor
        lower = torch.get_autocast_dtype("cuda")
        keep = (
            dtype is lower and tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf
            and not tensor._is_view() and torch.is_autocast_cache_enabled()
        )  # fmt: skip
        if not keep:
            return tensor.to(dtype)
        known = self._kept.get(id(tensor))
        if known is None:
            known = self._kept[id(tensor)] = (tensor, tensor.to(dtype))
        return known[1]


def kernels(cache: CastCache) -> dict[str, Kernel]:
    """Kernels by operator for the key AutocastCUDA. Operators that this PyTorch lacks are left out."""
    made = {name: _casting(name, cache, lambda _: torch.get_autocast_dtype("cuda")) for name in _known(LOWER_PRECISION)}
    made.update((name, _casting(name, cache, lambda _: torch.float32)) for name in _known(FULL_PRECISION))
    made.update((name, _casting(name, cache, _widest)) for name in _known(WIDEST))
    made.update((name, _full_result(name)) for name in _known(FULL_PRECISION_RESULT))
    return made


def _known(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if hasattr(getattr(torch.ops.aten, name.partition(".")[0], None), _overload(name))]


def _overload(name: str) -> str:
    return name.partition(".")[2] or "default"


def _operator(name: str) -> Any:
    return getattr(getattr(torch.ops.aten, name.partition(".")[0]), _overload(name))


def without_autocast() -> Any:
    """A context in which operators run as they are called."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA))


def _casting(name: str, cache: CastCache, choose: Callable[[Any], Any]) -> Kernel:
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            dtype = choose([*args, *kwargs.values()])
            cast = _cast_all((args, kwargs), lambda tensor: cache.cast(tensor, dtype))
            return operator(*cast[0], **cast[1])

    return kernel


def _full_result(name: str) -> Kernel:
    operator = _operator(name)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with without_autocast():
            if _eligible(args[0]) and kwargs.get("dtype") is None and not any(isinstance(a, torch.dtype) for a in args):
                kwargs["dtype"] = torch.float32
            return operator(*args, **kwargs)

    return kernel


def _eligible(value: Any) -> bool:
    """``cached_cast`` and ``is_eligible``: floating point on the device, and not double."""
    return (
        isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype is not torch.float64
        and value.device.type == "cuda"
    )  # fmt: skip


def _widest(values: Any) -> Any:
    """``promote_type``: float32 as soon as one is, or as two lower types differ."""
    found = {tensor.dtype for tensor in _tensors(values) if _eligible(tensor)}
    return found.pop() if len(found) == 1 else torch.float32


def _tensors(values: Any) -> list[Any]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [tensor for value in values for tensor in _tensors(value)] if isinstance(values, (list, tuple)) else []


def _cast_all(value: Any, cast: Kernel) -> Any:
    """The last argument first, as the C++ compiler that PyTorch is built with evaluates them."""
    if isinstance(value, torch.Tensor):
        return cast(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_cast_all(item, cast) for item in reversed(value)][::-1])
    if isinstance(value, dict):
        return {key: _cast_all(item, cast) for key, item in value.items()}
    return value
