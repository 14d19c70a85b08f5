"""Operators that PyTorch runs otherwise for fake tensors than for those of a GPU: what would be memory of no real run.

Some run in place on a GPU, but not for tensor subclasses such as fake tensors (``isTensorSubclassLike``). Of others,
PyTorch's description for no device gets the memory layout wrong, which decides what later operators copy, or the size
of the storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from tidegauge.estimator.kernels.calls import layout, suggests_channels_last

_INTO_ZEROS = (
    "aten.index_add.default",
    "aten.index_put.default",
    "aten.masked_scatter.default",
    "aten.scatter.src",
    "aten.scatter_add.default",
)
"""How the backward passes of ``index_select``, indexing, ``masked_select``, ``max`` and ``gather`` fill new zeros
(``index_select_backward_symint``, ``index_backward``, ``masked_select_backward``, ``gather_backward`` and
``value_selecting_reduction_backward`` in FunctionsManual.cpp)."""
_ACCUMULATE = 3
"""Position of the argument of ``index_put``; without it, it is the backward pass of ``index_put`` itself."""


def kernels() -> dict[str, Callable[..., Any]]:
    """Kernels by operator, to be registered above PyTorch's."""
    return {"linear": _linear}


def in_backward(name: str, args: tuple[Any, ...]) -> bool:
    """Whether this operator, run by autograd, writes into its first argument. Double backward passes do not."""
    if name not in _INTO_ZEROS or torch.is_grad_enabled():
        return False
    return name != "aten.index_put.default" or (len(args) > _ACCUMULATE and bool(args[_ACCUMULATE]))


def _linear(values: Any, weight: Any, bias: Optional[Any] = None) -> Any:
    """``linear`` in Linear.cpp: a bias is added in place where input is not contiguous and the product has no bias."""
    operator = torch.ops.aten.linear.default
    if bias is None or values.dim() <= 2 or bias.dim() != 1 or values.is_contiguous():
        return operator.decompose(values, weight, bias)
    return torch.matmul(values, weight.t()).add_(bias)


_CONTIGUOUS = ("aten.native_layer_norm.default", "aten.native_layer_norm_backward.default")
"""``layer_norm_kernel.cu`` copies what is not contiguous; its results always are."""
_GROUPED = "aten._grouped_mm.default"
_SHRUNK_LOSSES = ("aten.mse_loss.default", "aten.smooth_l1_loss.default")
"""Made with an element for each of the input and then made smaller, which keeps the memory
(``TORCH_META_FUNC(mse_loss)`` in Loss.cpp)."""


def convolution_layout(values: Any, weight: Any, _backend: object) -> Any:
    """``cudnn_conv_suggest_memory_format``; PyTorch's own function of this purpose answers for the CPU."""
    last = any(suggests_channels_last(layout(tensor)) for tensor in (values, weight))
    return torch.channels_last if last else torch.contiguous_format


def arguments(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments for which the description gives the layout of the GPU's kernel; ``args`` for most operators."""
    if name in _CONTIGUOUS:
        return tuple(arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args)
    if name == _GROUPED:  # described for bfloat16 alone, computed in other types, too
        return (*(tensor.to(torch.bfloat16) for tensor in args[:2]), *args[2:])
    return args


def result(name: str, args: tuple[Any, ...], described: Any) -> Any:
    """``described`` with the type and the storage that the GPU's kernel gives it."""
    if name == _GROUPED:
        return described.to(args[0].dtype)
    if name in _SHRUNK_LOSSES and described.dim() == 0:
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return described.new_empty(shape).resize_(())
    return described
