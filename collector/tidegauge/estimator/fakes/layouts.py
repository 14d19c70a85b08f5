"""Memory layouts of results on the GPU, for operators that PyTorch's description for no device gets wrong.

Strides decide which later operators copy their arguments, so a wrong one here is memory that no real run takes.
"""

from __future__ import annotations

from typing import Any

import torch

from tidegauge.estimator.kernels.tensors import layout, suggests_channels_last

_CONTIGUOUS = ("aten.native_layer_norm.default", "aten.native_layer_norm_backward.default")
"""``layer_norm_kernel.cu`` copies what is not contiguous; its results always are."""
_GROUPED = "aten._grouped_mm.default"


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
    """``described`` cast back to the type of ``args``, where ``arguments`` cast them."""
    return described.to(args[0].dtype) if name == _GROUPED else described
