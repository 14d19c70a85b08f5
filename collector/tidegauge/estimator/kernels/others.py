"""Pooling, resizing, rolling and norms of lists. Measured on an H200 with torch 2.11."""

from __future__ import annotations

from collections.abc import Callable

from tidegauge.estimator.kernels.calls import OpCall, Scratch, copied, layout, numel, size_bytes, suggests_channels_last

_FLOAT_BYTES = 4
_CHUNK = 65536
"""Elements that one block of a ``_foreach`` kernel takes."""


def _roll(call: OpCall) -> Scratch:
    """Rolls one dimension after the other, each a copy."""
    dims = call.argument(2, "dims", ())
    return Scratch(before=(size_bytes(call.args[0]),) if len(dims) > 1 else ())


def _gradient_made_contiguous(call: OpCall) -> Scratch:
    """Kernels that go by images copy the gradient; channels last is as good as contiguous."""
    gradient = call.args[0]
    return Scratch() if suggests_channels_last(layout(gradient)) else Scratch(after=copied(gradient))


def _norms(call: OpCall) -> Scratch:
    """``foreach_tensor_norm_cuda``: as many parts for each tensor as the largest has."""
    tensors = call.args[0]
    parts = max((-(-numel(tensor) // _CHUNK) for tensor in tensors), default=0)
    return Scratch(before=(len(tensors) * parts * _FLOAT_BYTES,))


KERNELS: dict[str, Callable[[OpCall], Scratch]] = {
    "aten.roll.default": _roll,
    "aten.max_pool2d_with_indices_backward.default": _gradient_made_contiguous,
    "aten.avg_pool2d_backward.default": _gradient_made_contiguous,
    "aten.upsample_bilinear2d_backward.default": _gradient_made_contiguous,
    "aten.upsample_nearest2d_backward.default": _gradient_made_contiguous,
    "aten.upsample_bicubic2d_backward.default": _gradient_made_contiguous,
    "aten._foreach_norm.Scalar": _norms,
}
